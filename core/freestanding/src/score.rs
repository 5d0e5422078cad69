//! Scores examples with a flat model, both from standard input: a line per example, the bits of
//! its logit in hexadecimal.
//!
//! The input: the model; the numbers of examples and of ids, u64s; dense features, f32s
//! `[n, D]`; offsets of bags, u32s `[n * S + 1]`; ids, u32s. All little-endian.
#![no_std]
#![no_main]

mod input;
mod machine;

use core::fmt::Write;
use core::panic::PanicInfo;

use machine::{Output, exit};
use umbra_core::batch::{Batch, Jagged};
use umbra_core::flat::{Flat, Memory};

/// Most examples, and most ids, dense features and offsets of all of them.
const N: usize = 1 << 9;
const COLUMN: usize = 1 << 13;

/// Every byte the program owns.
struct Owned {
    input: [u8; 1 << 21],
    single: [f32; 1 << 20],
    double: [f64; 1 << 12],
    slot: [u32; COLUMN],
    dense: [f32; COLUMN],
    offsets: [u32; COLUMN],
    values: [u32; COLUMN],
    logits: [f32; N],
}

static mut OWNED: Owned = Owned {
    input: [0; 1 << 21],
    single: [0.0; 1 << 20],
    double: [0.0; 1 << 12],
    slot: [0; COLUMN],
    dense: [0.0; COLUMN],
    offsets: [0; COLUMN],
    values: [0; COLUMN],
    logits: [0.0; N],
};

/// The next `N` bytes.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

/// The next `length` numbers, into `memory`.
fn column<'a, T>(
    rest: &mut &[u8],
    memory: &'a mut [T],
    length: usize,
    number: fn([u8; 4]) -> T,
) -> Option<&'a [T]> {
    let column = memory.get_mut(..length)?;
    for to in &mut *column {
        *to = number(take(rest)?);
    }
    Some(column)
}

fn score(owned: &mut Owned) -> Option<()> {
    let Owned { input, single, double, slot, dense, offsets, values, logits } = owned;
    let input = input::read(input)?;
    // The third word of a flat model is its length.
    let length = u64::from_le_bytes(take(&mut input.get(16..)?)?);
    let (model, mut rest) = input.split_at_checked(usize::try_from(length).ok()?)?;
    let flat = Flat::parse(model).map_err(say).ok()?;
    let mut count = || usize::try_from(u64::from_le_bytes(take(&mut rest)?)).ok();
    let (n, ids) = (count()?, count()?);
    let model = flat.model();
    let dense =
        column(&mut rest, dense, n.checked_mul(model.dense_features())?, f32::from_le_bytes)?;
    let bags = n.checked_mul(model.fields())?;
    let offsets = column(&mut rest, offsets, bags.checked_add(1)?, u32::from_le_bytes)?;
    let values = column(&mut rest, values, ids, u32::from_le_bytes)?;
    let label = [0.0; N];
    let row = [0; N];
    let (label, row) = (label.get(..n)?, row.get(..n)?);
    let bags = Jagged { values, offsets, weights: &[] };
    let batch = Batch { label, weight: &[], dense, bags, row };
    let logits = logits.get_mut(..n)?;
    let mut scorer = flat.scorer(Memory { single, double, slot }).map_err(say).ok()?;
    scorer.score(&batch, logits).map_err(say).ok()?;
    logits.iter().try_for_each(|logit| writeln!(Output, "{:08x}", logit.to_bits())).ok()
}

fn say(error: impl core::fmt::Display) {
    // The exit code tells all there is to tell if writing fails.
    let _ = writeln!(Output, "{error}");
}

extern "C" fn main() -> ! {
    let owned = &raw mut OWNED;
    // SAFETY: the only reference ever made to it, by the only thread, from code that runs once.
    let owned = unsafe { &mut *owned };
    exit(if score(owned).is_some() { 0 } else { 1 })
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    say(info);
    exit(2)
}
