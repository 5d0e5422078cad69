//! What ranks send each other about dense replicas: coded vectors, the parts of messages between
//! instances, heartbeats.

use umbra_core::compress::{
    Mask, Values, add, code, gather, len_max, mask_len, read_mask, scatter,
};
use umbra_mpi::comm::post::{Body, Message};
use umbra_mpi::dense::stretches::{Stretches, append};
use umbra_mpi::dense::{coded_groups, coded_links};
use umbra_mpi::run::heartbeat::read_beat;

use super::targets::Fuzzed;

/// Bytes as words, as they lie; what is left over is not there.
pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

pub(super) fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A vector of `len`, of which one in `one_of` is no zero, coded.
fn message(len: usize, one_of: usize, values: Values) -> Vec<u8> {
    let at = |i: usize| if i.is_multiple_of(one_of) { i as f32 - 7.5 } else { 0.0 };
    let vector: Vec<f32> = (0..len).map(at).collect();
    let mut words = vec![0; mask_len(len)];
    for at in (0..len).step_by(one_of) {
        words[at / 32] |= 1 << (at % 32);
    }
    let mask = Mask::told(&words);
    let mut out = vec![0; len_max(len, values)];
    let length = code(&vector, &mask, values, &mut out);
    out.truncate(length);
    out
}

const ALL_VALUES: [Values; 3] = [Values::F32, Values::Bf16, Values::F8];

/// Elements of the vectors that are coded: few for bits, more for gaps.
const LENGTHS: [usize; 3] = [40, 700, 70_000];

pub(super) fn coded() -> Fuzzed {
    let lengths = LENGTHS.into_iter().enumerate();
    let all = lengths.flat_map(|(kind, len)| {
        [1, 3, 50, 30_000].into_iter().filter(move |one_of| len / one_of < 300).flat_map(
            move |one_of| {
                ALL_VALUES.map(|values| [vec![kind as u8], message(len, one_of, values)].concat())
            },
        )
    });
    let mut vectors = LENGTHS.map(|len| (vec![0.0; len], vec![0; mask_len(len)]));
    Fuzzed::new(all.collect(), move |case, _| {
        let (kind, message) = case.split_first().unwrap_or((&0, case));
        let (vector, words) = &mut vectors[usize::from(*kind) % LENGTHS.len()];
        let len = vector.len();
        let added = add(message, vector);
        vector.fill(0.0);
        let mask = read_mask(message, len, words);
        let (Ok(added), Ok(mask)) = (&added, &mask) else {
            let agree = added.is_err() || mask.is_ok();
            return if agree { Ok(false) } else { Err("added, and no mask of it".into()) };
        };
        if mask.count() != *added {
            return Err(format!("{added} elements, a mask of {}", mask.count()));
        }
        for values in ALL_VALUES {
            let mut out = vec![0; added * values.bytes()];
            let length = gather(vector, mask, values, &mut out);
            scatter(&out[..length], mask, values, vector).map_err(|error| error.to_string())?;
            // What came in their place.
            let _ = scatter(message, mask, values, vector);
        }
        vector.fill(0.0);
        Ok(true)
    })
}

/// How the slice of the tests is cut.
fn stretches() -> Stretches {
    Stretches { coded: vec![0..300, 340..700], plain: vec![300..340, 700..705] }
}

/// Two vectors that are coded behind values as they are, for a whole slice or a stretch of it.
pub(super) fn links() -> Fuzzed {
    let parts = stretches();
    let own = 250..500;
    let of = |plain: usize, coded: [usize; 2]| {
        let mut bytes = vec![1; 4 * plain];
        coded.into_iter().for_each(|len| append(&mut bytes, &message(len, 9, Values::Bf16)));
        bytes
    };
    let good = vec![of(45, [300, 360]), of(40, [50, 160])];
    let mut values = vec![0.0; 705];
    Fuzzed::new(good, move |case, dice| {
        if dice.below(2) == 0 {
            let short = if dice.below(8) == 0 { dice.below(706) } else { 705 };
            return Ok(coded_links::read(&parts, case, &mut values[..short]).is_ok());
        }
        let mut visited = 0;
        let own_values = &mut values[own.clone()];
        let read = coded_groups::each(&parts, &own, case, own_values, |_, _| visited += 1);
        if visited > own.len() {
            return Err(format!("{visited} elements of {}", own.len()));
        }
        Ok(read.is_ok())
    })
}

/// Instances of the method.
const INSTANCES: usize = 5;

/// Messages between instances in pieces, cut anywhere, and heartbeats.
pub(super) fn post() -> Fuzzed {
    let of = |kind: u32, body: &[u32]| {
        let header = [2 | kind << 29, 4, 7, 1 << 24, body.len() as u32];
        bytes(&[&header, body].concat())
    };
    let bodies: [(u32, Vec<u32>); 5] =
        [(0, vec![]), (0, vec![1; 9]), (1, vec![3; 8]), (3, vec![0x0102_0304; 4]), (4, vec![9; 2])];
    let mut good: Vec<_> = bodies.iter().map(|(kind, body)| of(*kind, body)).collect();
    good.push(vec![1; 149]);
    Fuzzed::new(good, |case, dice| {
        let words = words(case);
        let (heard, signal) = read_beat(&words);
        let said = heard.map_or(0, |(reading, marks)| {
            let marks = marks.iter().map(|mark| mark.to_words().len());
            2 * (reading.to_words().len() + marks.sum::<usize>())
        });
        if said + signal.len() > words.len() {
            return Err("a beat of more words than came".into());
        }
        let most = 1 + dice.below(words.len().max(1));
        let Ok(Some(message)) = Message::of_pieces(words.chunks(most), INSTANCES) else {
            return Ok(false);
        };
        if message.from() >= INSTANCES {
            return Err(format!("from instance {} of {INSTANCES}", message.from()));
        }
        let there = match message.body() {
            Body::Values(values) | Body::State(values) => 4 * values.len(),
            Body::Note(note) => size_of_val(&note).min(case.len()),
            Body::CodedChange(bytes) | Body::CodedState(bytes) => bytes.len(),
        };
        let _ = message.word();
        if there <= case.len() { Ok(true) } else { Err(format!("{there} bytes of {}", case.len())) }
    })
}
