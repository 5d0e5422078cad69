//! Rows in shared words: an update is its definition on every set; bf16s are read, summed and
//! rounded with the same bits on all of them.

use super::*;
use crate::kernel::isa::Source;
use crate::kernel::pool::{Bag, Rows, sum_rows};
use crate::kernel::row_values::{Pair, Rounded, RowValues, Stored, Whole, load_pairs, store_pairs};
use crate::kernel::words::all_finite_with;
use crate::optim::{Adam, Optimizer, OptimizerKind, RowLoop, RowRule, SparseOptimizer};

/// Widths with and without whole vectors, whole words and whole runs of noise.
const WIDTHS: [usize; 15] = [1, 2, 3, 7, 8, 10, 15, 16, 17, 33, 63, 64, 65, 100, 128];

/// An update of one record.
struct RowUpdate<'a, V> {
    optimizer: &'a SparseOptimizer,
    values: V,
    state: &'a [AtomicU32],
    gradient: &'a [f32],
}

impl<V: RowValues> Kernel for RowUpdate<'_, V> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let optimizer = self.optimizer;
        optimizer.run(isa, self);
    }
}

impl<V: RowValues> RowLoop for RowUpdate<'_, V> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I, rule: impl RowRule) {
        let of = (self.gradient, rule.know(isa, self.gradient));
        rule.update_row(isa, 0.1, (self.values, self.state), of);
    }
}

/// Row-wise Adagrad is its definition on every set, at every width.
#[test]
fn a_row_update_is_its_definition() {
    let eps = 1e-3;
    let widths = sets().flat_map(|set| [1, 3, 10, 16, 33].map(|width| (set, width)));
    for ((set, width), weight_decay) in widths.flat_map(|of| [0.0, 0.01].map(|decay| (of, decay))) {
        let optimizer = &SparseOptimizer::RowwiseAdagrad { eps, initial: 0.5, weight_decay };
        let (p, g) = (numbers(1, width), numbers(2, width));
        let mut record = [&p[..], &[0.5]].concat();
        let (values, state) = shared(&mut record).split_at(width);
        run_on(set, RowUpdate { optimizer, values: Whole(values), state, gradient: &g });
        let decayed = |i: usize| f64::from(g[i]) + f64::from(weight_decay) * f64::from(p[i]);
        let squares: f64 = (0..width).map(|i| decayed(i).powi(2)).sum();
        let state = 0.5 + squares / width as f64;
        let step = 0.1 / (state.sqrt() + f64::from(eps));
        let expected: Vec<f64> = (0..width).map(|i| f64::from(p[i]) - step * decayed(i)).collect();
        close(&format!("{set} width {width}"), &record[..width], &expected, 1);
        close(&format!("{set} width {width}: state"), &record[width..], &[state], 4);
    }
}

/// The definition of rounding: element `at` of a row with this key.
fn rounded(x: f32, [a, b]: [u32; 2], at: usize) -> u16 {
    // Of 32 elements the first 16 have the lower halves of 16 words, the others the upper ones.
    let (word, half) = ((at / 32 * 16 + at % 16) as u32, at / 16 % 2);
    let mut mix = word.wrapping_mul(0x9e37_79b9).wrapping_add(a);
    mix = (mix ^ (mix >> 16)).wrapping_mul(0x7feb_352d).wrapping_add(b);
    mix = (mix ^ (mix >> 15)).wrapping_mul(0x846c_a68b);
    mix ^= mix >> 16;
    let noise = (mix >> (16 * half)) & 0xffff;
    let bits = if x.is_nan() { x.to_bits() | 0x40_0000 } else { x.to_bits() + noise };
    (bits >> 16) as u16
}

/// Two to a word, zero behind the last of an odd number.
fn packed(halves: &[u16]) -> Vec<u32> {
    let word = |pair: &[u16]| u32::from(pair[0]) | pair.get(1).map_or(0, |x| u32::from(*x) << 16);
    halves.chunks(2).map(word).collect()
}

fn unpacked(halves: &[u16]) -> Vec<f32> {
    halves.iter().map(|half| f32::from_bits(u32::from(*half) << 16)).collect()
}

fn words(bits: &[u32]) -> Vec<AtomicU32> {
    bits.iter().map(|bits| AtomicU32::new(*bits)).collect()
}

fn bits(words: &[AtomicU32]) -> Vec<u32> {
    words.iter().map(|word| word.load(core::sync::atomic::Ordering::Relaxed)).collect()
}

#[test]
fn bf16s_are_rounded_by_the_numbers_of_their_row() {
    struct Store<'a>(Rounded<'a>, &'a [f32]);
    impl Kernel for Store<'_> {
        #[inline(always)]
        fn run<I: Isa>(self, isa: I) {
            store_pairs(isa, self.0, self.1);
        }
    }
    struct Load<'a>(&'a [AtomicU32], &'a mut [f32]);
    impl Kernel for Load<'_> {
        #[inline(always)]
        fn run<I: Isa>(self, isa: I) {
            load_pairs(isa, self.0, self.1);
        }
    }
    let special = [0x7f80_0001, 0xffff_ffff, 0x7f80_0000, 0xff80_0000, 0x7f7f_0000, 1, 0x8000_0000];
    for (set, width) in sets().flat_map(|set| WIDTHS.map(|width| (set, width))) {
        let key = [0x1234_5678 ^ width as u32, 0x9abc_def0];
        let mut x = numbers(4, width);
        for (x, special) in x.iter_mut().skip(width / 2).zip(special) {
            *x = f32::from_bits(special);
        }
        let expected: Vec<u16> = x.iter().enumerate().map(|(at, x)| rounded(*x, key, at)).collect();
        let stored = words(&vec![u32::MAX; width.div_ceil(2) + 1]);
        let (row, behind) = stored.split_at(width.div_ceil(2));
        run_on(set, Store(Rounded::new(row, key), &x));
        assert_eq!(bits(row), packed(&expected), "{set} width {width}");
        assert_eq!(bits(behind), [u32::MAX], "{set} width {width}");
        // Read again they are those numbers, and rounded again they are themselves.
        let mut read = vec![9.0; width];
        run_on(set, Load(row, &mut read));
        let as_bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(as_bits(&read), as_bits(&unpacked(&expected)), "{set} width {width}");
        run_on(set, Store(Rounded::new(row, [7, 8]), &read));
        assert_eq!(bits(row), packed(&expected), "{set} width {width}: rounded twice");
    }
}

/// An update of bf16s is that of the f32s that they are, rounded; state has the same bits.
#[test]
fn an_update_of_bf16s_is_that_of_f32s_rounded() {
    let rule = |kind| SparseOptimizer::Elementwise(Optimizer { kind, weight_decay: 0.01 });
    let adam = Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    for optimizer in &[
        rule(OptimizerKind::Sgd),
        rule(OptimizerKind::Momentum { beta: 0.9 }),
        rule(OptimizerKind::Adagrad { eps: 1e-8, initial: 0.1 }),
        rule(OptimizerKind::Adam(adam)),
        SparseOptimizer::RowwiseAdagrad { eps: 1e-8, initial: 0.1, weight_decay: 0.01 },
    ] {
        for width in WIDTHS {
            let key = [3, width as u32];
            let halves: Vec<u16> =
                numbers(6, width).iter().map(|x| (x.to_bits() >> 16) as u16).collect();
            let gradient = &numbers(7, width)[..];
            let mut before = vec![0.0; optimizer.state_len(width)];
            optimizer.initialize(&mut before);
            // Row-wise Adagrad sums squares in the order of a set's lanes: each is its own twin.
            for set in sets() {
                let (mut f32s, mut state) = (unpacked(&halves), before.clone());
                let (values, state_words) = (Whole(shared(&mut f32s)), shared(&mut state));
                run_on(set, RowUpdate { optimizer, values, state: state_words, gradient });
                let expected: Vec<u16> =
                    f32s.iter().enumerate().map(|(at, x)| rounded(*x, key, at)).collect();
                let (row, mut own) = (words(&packed(&halves)), before.clone());
                let values = Rounded::new(&row, key);
                run_on(set, RowUpdate { optimizer, values, state: shared(&mut own), gradient });
                let name = format!("{optimizer:?} on {set:?}, width {width}");
                assert_eq!(bits(&row), packed(&expected), "{name}");
                assert_eq!(bits(shared(&mut own)), bits(shared(&mut state)), "{name}");
                assert_ne!(bits(&row), packed(&halves), "{name}: nothing was updated");
            }
        }
    }
}

#[test]
fn sums_of_bf16s_are_those_of_the_f32s_that_they_are() {
    struct Sum<'a, T>(&'a [T], usize, usize, &'a mut [f32]);
    impl<T: Stored> Kernel for Sum<'_, T>
    where
        *const T: Source,
    {
        #[inline(always)]
        fn run<I: Isa>(self, isa: I) {
            let Self(elements, stride, width, out) = self;
            let bag = Bag {
                indices: &[2, 0, 2, 1],
                range: 1..4,
                weights: &[0.5, -1.0, 0.25],
                scale: 0.3,
            };
            sum_rows(isa, &bag, &Rows { elements, stride, columns: 0..width }, out, |_| ());
        }
    }
    for (set, width) in sets().flat_map(|set| WIDTHS.map(|width| (set, width))) {
        let halves: Vec<u16> =
            numbers(8, 3 * width).iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        let rows: Vec<u32> = halves.chunks(width).flat_map(packed).collect();
        let (mut f32s, mut pairs) = (vec![0.0; width], vec![9.0; width]);
        run_on(set, Sum(&unpacked(&halves), width, width, &mut f32s));
        run_on(set, Sum(Pair::of(&words(&rows)), width.div_ceil(2), width, &mut pairs));
        assert_eq!(pairs, f32s, "{set} width {width}");
    }
}

/// Wherever it stands, and whatever it is.
#[test]
fn one_number_that_is_not_finite_is_found() {
    struct Asked<'a>(&'a [f32], &'a mut bool);
    impl Kernel for Asked<'_> {
        #[inline(always)]
        fn run<I: Isa>(self, isa: I) {
            *self.1 = all_finite_with(isa, self.0);
        }
    }
    let found = |set, numbers: &[f32]| {
        let mut finite = false;
        run_on(set, Asked(numbers, &mut finite));
        !finite
    };
    let large = [f32::MAX, f32::MIN, f32::MIN_POSITIVE / 2.0, -0.0];
    for set in sets() {
        for len in 0..150 {
            let mut numbers: Vec<f32> = large.iter().copied().cycle().take(len).collect();
            assert!(!found(set, &numbers), "{set}: {len} finite numbers");
            for at in 0..len {
                for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let finite = core::mem::replace(&mut numbers[at], x);
                    assert!(found(set, &numbers), "{set}: {x} at {at} of {len}");
                    numbers[at] = finite;
                }
            }
        }
    }
}
