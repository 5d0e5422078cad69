//! Bytes that are almost right: seeded changes of good ones, and of those that came of them.

use umbra_core::rng::{Purpose, Stream};

/// Draws numbers; two of the same seed draw the same.
pub(crate) struct Dice {
    stream: Stream,
    drawn: u64,
}

impl Dice {
    pub(crate) fn new(seed: u64, lane: u32) -> Self {
        Self { stream: Stream::new(seed, Purpose::Test(100 + lane)), drawn: 0 }
    }

    /// A number below `bound`, 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.drawn += 1;
        self.stream.below(self.drawn, bound.max(1) as u64) as usize
    }

    fn one_of<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// The texts that new ones are made from.
pub(crate) struct Pool {
    good: Vec<Vec<u8>>,
    /// The first are those of the beginning.
    kept: Vec<Vec<u8>>,
    bytes_max: usize,
}

impl Pool {
    pub(crate) fn new(good: Vec<Vec<u8>>) -> Self {
        let longest = good.iter().map(Vec::len).max().unwrap_or(0);
        Self { kept: good.clone(), good, bytes_max: BYTES_MAX.max(2 * longest) }
    }

    /// One of them with one to eight changes.
    pub(crate) fn draw(&self, dice: &mut Dice, into: &mut Vec<u8>) {
        into.clear();
        let from = if dice.below(2) == 0 { &self.good } else { &self.kept };
        into.extend_from_slice(&from[dice.below(from.len())]);
        let other = &self.kept[dice.below(self.kept.len())];
        let changes_max = 1 << dice.below(4);
        for _ in 0..=dice.below(changes_max) {
            change(into, other, dice);
        }
        into.truncate(self.bytes_max);
    }

    /// Others may be made from this one.
    pub(crate) fn keep(&mut self, text: &[u8], dice: &mut Dice) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(text.to_vec());
        } else {
            let place = dice.below(KEPT_MAX);
            self.kept[place].clear();
            self.kept[place].extend_from_slice(text);
        }
    }
}

fn change(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.below(bytes.len() + 1);
    let longest = 1 << dice.below(8);
    let length = (1 + dice.below(longest)).min(bytes.len() - at);
    match dice.below(11) {
        0 | 1 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
        2 if at < bytes.len() => bytes[at] = dice.below(256) as u8,
        3 | 4 => {
            let word = dice.one_of(WORDS);
            bytes.splice(at..at, word.iter().copied());
        }
        5 => {
            let word = dice.one_of(WORDS);
            bytes.splice(at..at + length, word.iter().copied());
        }
        6 => drop(bytes.drain(at..at + length)),
        7 => {
            let piece = bytes[at..at + length].to_vec();
            let to = dice.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
        8 => {
            let from = dice.below(other.len());
            let end = other.len().min(from + 1 + dice.below(300));
            bytes.splice(at..at + length, other[from.min(end)..end].iter().copied());
        }
        // A number of some bytes, where such numbers begin.
        9 => {
            let size = 1 << dice.below(4);
            let at = at / size * size;
            let bits = 8 * size as u32;
            let power = 1u64 << dice.below(bits as usize);
            let number = match dice.below(4) {
                0 => u64::MAX,
                1 => power,
                2 => power.wrapping_sub(1),
                _ => dice.below(40) as u64,
            };
            if let Some(place) = bytes.get_mut(at..at + size) {
                place.copy_from_slice(&number.to_le_bytes()[..size]);
            }
        }
        // Between two separators everything is another value.
        _ => {
            let is_separator = |byte: &u8| b",;\t :|\n=[]{}\x1f".contains(byte);
            let start = bytes[..at].iter().rposition(is_separator).map_or(0, |before| before + 1);
            let end = bytes[at..].iter().position(is_separator).map_or(bytes.len(), |n| at + n);
            let word = dice.one_of(WORDS);
            bytes.splice(start..end, word.iter().copied());
        }
    }
}

/// What a parser may stumble over.
const WORDS: &[&[u8]] = &[
    b"",
    b"\n",
    b"\r\n",
    b"\r",
    b"\t",
    b"\t\t\t\t",
    b",",
    b",,",
    b";",
    b":",
    b"::1",
    b":1",
    b"|",
    b"\"",
    b"\"\"",
    b"\"\"\"",
    b"\"a\n",
    b"' ",
    b"#",
    b"# ",
    b"=",
    b"[",
    b"]",
    b"{ column = 1 }",
    b"{}",
    b"[]",
    b"[[1]]",
    b"null",
    b"false",
    b"\"\":0,",
    b"\\",
    b"\\u0000",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xf0\x9f\x98\x80",
    b"\xc3",
    b"\x1f",
    b"../",
    b"0-",
    b"-",
    b"+",
    b"--1",
    b"0",
    b"-0",
    b"00000000000000000000",
    b"1",
    b"-1",
    b"2147483648",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"999999999999999999",
    b"1000000000000000000",
    b"340282366920938463463374607431768211456",
    b"0.5",
    b".5",
    b"1e38",
    b"3.5e38",
    b"1e-46",
    b"1e308",
    b"1e400",
    b"nan",
    b"NaN",
    b"inf",
    b"-inf",
    b"NA",
    b"true",
    b"ffffffff",
    b"FFFFFFFF",
    b"fffffffff",
    b"0x10",
    b"label",
    b"log",
    b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// Of a case that is made from shorter ones.
const BYTES_MAX: usize = 4096;

const KEPT_MAX: usize = 256;
