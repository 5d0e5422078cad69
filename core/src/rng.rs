//! Counter-based random numbers: Philox4x32-10.
//!
//! J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2,
//! 3", SC'11. A number is a function of (seed, purpose, index) alone: no state, no order, so
//! nothing depends on the number of threads or ranks.

use crate::float;

/// What a stream of numbers is for; each purpose has a stream of its own under one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Initial value of dense tensor number `0`, in the order of the model's tensors.
    DenseInit(u32),
    /// Initial rows of table number `0`.
    RowInit(u32),
    /// Dropout mask of layer `0`.
    Dropout(u32),
    /// Order of chunks and rows in an epoch.
    Shuffle(u32),
    /// Synthetic data, column `0`.
    Synthetic(u32),
    /// Test data.
    Test(u32),
    /// Times of simulated worker `0`.
    Simulation(u32),
    /// Groups of a synchronization round.
    Groups,
    /// Failures: their times `0`, their victims `1`.
    Failure(u32),
    /// Rounding of rows in step `0`.
    Rounding(u32),
}

impl Purpose {
    const fn word(self) -> u64 {
        let (kind, number) = match self {
            Self::DenseInit(n) => (1, n),
            Self::RowInit(n) => (2, n),
            Self::Dropout(n) => (3, n),
            Self::Shuffle(n) => (4, n),
            Self::Synthetic(n) => (5, n),
            Self::Test(n) => (6, n),
            Self::Simulation(n) => (7, n),
            Self::Groups => (8, 0),
            Self::Failure(n) => (9, n),
            Self::Rounding(n) => (10, n),
        };
        (kind << 32) | number as u64
    }
}

/// The stream of one seed and purpose.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: [u32; 2],
    purpose: u64,
}

impl Stream {
    /// The numbers of `seed` for `purpose`.
    #[must_use]
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        Self { key: halves(seed), purpose: purpose.word() }
    }

    /// Four independent words of block `index`.
    #[must_use]
    pub fn block(&self, index: u64) -> [u32; 4] {
        let ([a, b], [c, d]) = (halves(index), halves(self.purpose));
        philox([a, b, c, d], self.key)
    }

    /// The blocks of these indices. Inlined, so that it has the vectors of the kernel that calls
    /// it.
    #[inline(always)]
    pub(crate) fn blocks(&self, indices: [u64; BLOCKS]) -> [[u32; 4]; BLOCKS] {
        let [c, d] = halves(self.purpose).map(u64::from);
        let (mut a, mut b) = ([0; BLOCKS], [0; BLOCKS]);
        for (index, (a, b)) in indices.into_iter().zip(a.iter_mut().zip(&mut b)) {
            [*a, *b] = halves(index).map(u64::from);
        }
        let words = philox_lanes([a, b, [c; BLOCKS], [d; BLOCKS]], self.key);
        core::array::from_fn(|i| core::array::from_fn(|word| halves(words[word][i])[0]))
    }

    /// Word number `index`: 64 uniform bits.
    #[must_use]
    pub fn word(&self, index: u64) -> u64 {
        let block = self.block(index);
        u64::from(block[0]) << 32 | u64::from(block[1])
    }

    /// Uniform in [0, 1), 24 bits.
    #[must_use]
    pub fn uniform(&self, index: u64) -> f32 {
        unit(self.block(index)[0])
    }

    /// Uniform in [0, 1), 53 bits.
    #[must_use]
    pub fn uniform_f64(&self, index: u64) -> f64 {
        (self.word(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal with mean 0 and variance 1 (Box and Muller 1958).
    #[must_use]
    pub fn normal(&self, index: u64) -> f32 {
        let block = self.block(index);
        // 1 - u lies in (0, 1], so the logarithm is finite.
        let radius = float::sqrt(-2.0 * libm::logf(1.0 - unit(block[0])));
        radius * libm::cosf(core::f32::consts::TAU * unit(block[1]))
    }

    /// Uniform in `0..bound`, without bias worth naming (bias below bound / 2^64).
    #[must_use]
    pub fn below(&self, index: u64, bound: u64) -> u64 {
        let product = u128::from(self.word(index)) * u128::from(bound);
        (product >> 64) as u64
    }

    /// Shuffles `items` (Fisher and Yates), drawing words `from..from + items.len()`.
    pub fn shuffle<T>(&self, from: u64, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            #[expect(clippy::cast_possible_truncation, reason = "below i + 1, which is a usize")]
            let j = self.below(from + i as u64, i as u64 + 1) as usize;
            items.swap(i, j);
        }
    }
}

/// The upper 24 bits as a number in [0, 1): exact in f32.
#[inline]
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 / 16_777_216.0
}

#[expect(clippy::cast_possible_truncation, reason = "splitting a word in two")]
const fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// Ten rounds of Philox4x32 (section 3 of the paper; constants of table 2).
#[inline]
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let [low0, high0] = halves(0xD251_1F53 * u64::from(counter[0]));
        let [low1, high1] = halves(0xCD9E_8D57 * u64::from(counter[2]));
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
    }
    counter
}

/// Blocks that are made together.
pub(crate) const BLOCKS: usize = 8;

/// Words that [`hashes`] makes together. Of fewer the compiler made no vectors where dropout asks
/// for them.
pub(crate) const HASHES: usize = 32;

/// Words number `first` and the following under a key. Inlined, so that it has the vectors of the
/// kernel that calls it.
#[inline(always)]
pub(crate) fn hashes(key: [u32; 2], first: u32) -> [u32; HASHES] {
    let mut words = [0; HASHES];
    for (number, word) in (0..).zip(&mut words) {
        *word = hash(key, first.wrapping_add(number));
    }
    words
}

/// A word is its number, multiplied and added to the key and mixed by C. Wellons' `lowbias32`
/// (hash-prospector, 2018): a tenth of the work of a block, which is where the key comes from.
#[inline(always)]
pub(crate) const fn hash([a, b]: [u32; 2], number: u32) -> u32 {
    let mut x = number.wrapping_mul(0x9E37_79B9).wrapping_add(a);
    x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D).wrapping_add(b);
    x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}

/// Numbers that [`noises`] makes together.
pub(crate) const NOISES: usize = 32;

/// Numbers of 16 bits, as bits of f32s, from the halves of words number `first` and the following
/// under a key ([`hash`]): number i is the lower half of word i, number i + 16 the upper one.
/// Inlined, so that it has the vectors of the kernel that calls it.
#[inline(always)]
pub(crate) fn noises(key: [u32; 2], first: u32) -> [f32; NOISES] {
    let mut noises = [0.0; NOISES];
    let (lower, upper) = noises.split_at_mut(NOISES / 2);
    for (i, (lower, upper)) in (0..).zip(lower.iter_mut().zip(upper)) {
        let x = hash(key, first.wrapping_add(i));
        (*lower, *upper) = (f32::from_bits(x & 0xFFFF), f32::from_bits(x >> 16));
    }
    noises
}

/// [`philox`] of a counter in every lane, in the lower halves of words of 64 bits: they are
/// multiplied as they stand, and what is above them comes to nothing.
#[inline(always)]
fn philox_lanes(mut counter: [[u64; BLOCKS]; 4], mut key: [u32; 2]) -> [[u64; BLOCKS]; 4] {
    const LOW: u64 = 0xFFFF_FFFF;
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let [k0, k1] = key.map(u64::from);
        let [c0, c1, c2, c3] = &mut counter;
        for i in 0..BLOCKS {
            let p0 = (c0[i] & LOW) * 0xD251_1F53;
            let p1 = (c2[i] & LOW) * 0xCD9E_8D57;
            (c0[i], c1[i], c2[i], c3[i]) =
                ((p1 >> 32) ^ c1[i] ^ k0, p1, (p0 >> 32) ^ c3[i] ^ k1, p0);
        }
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_made_together_are_those_made_alone() {
        let stream = Stream::new(0x5555_1234_9876_0001, Purpose::Dropout(3));
        let indices = [0, 77, u64::from(u32::MAX), 1 << 32, u64::MAX, 3, 2, 1];
        assert_eq!(stream.blocks(indices), indices.map(|index| stream.block(index)));
    }

    /// Known answers of the authors' library (Random123, `kat_vectors`).
    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// Every bit of every number is as often set as not, and is so whatever its neighbours in the
    /// row, in the next row and in the next word are: within 5 standard deviations.
    #[test]
    fn noises_are_uniform_and_independent() {
        const ROWS: u64 = 20_000;
        let stream = Stream::new(11, Purpose::Rounding(5));
        let row = |index| {
            let [a, b, ..] = stream.block(index << 32);
            [0, 16].map(|first| noises([a, b], first).map(f32::to_bits))
        };
        let mut set = [[0u32; 16]; 2 * NOISES];
        let mut same = [[0u32; 3]; 2 * NOISES];
        let mut last = row(ROWS);
        for index in 0..ROWS {
            let now = row(index);
            for (at, x) in now.iter().flatten().enumerate() {
                assert!(*x < 1 << 16);
                let others = [
                    now[at / NOISES][(at + 1) % NOISES],
                    now[at / NOISES][(at + 16) % NOISES],
                    last[at / NOISES][at % NOISES],
                ];
                for (bit, set) in set[at].iter_mut().enumerate() {
                    *set += x >> bit & 1;
                }
                for (same, other) in same[at].iter_mut().zip(others) {
                    *same += (x ^ other).count_ones();
                }
            }
            last = now;
        }
        let off =
            |count: u32, of: u64| (f64::from(count) - of as f64 / 2.0) / (of as f64).sqrt() * 2.0;
        for (set, same) in set.iter().zip(&same) {
            assert!(set.iter().all(|count| off(*count, ROWS).abs() < 5.0), "{set:?}");
            assert!(same.iter().all(|count| off(*count, 16 * ROWS).abs() < 5.0), "{same:?}");
        }
    }

    #[test]
    fn normal_has_mean_0_and_variance_1() {
        let stream = Stream::new(7, Purpose::Test(0));
        let (mut sum, mut squares) = (0.0f64, 0.0f64);
        for i in 0..100_000 {
            let x = f64::from(stream.normal(i));
            sum += x;
            squares += x * x;
        }
        assert!((sum / 1e5).abs() < 0.015, "mean {}", sum / 1e5);
        assert!((squares / 1e5 - 1.0).abs() < 0.02, "variance {}", squares / 1e5);
    }

    #[test]
    fn shuffle_is_a_permutation_and_depends_on_the_seed() {
        let mut a: [u32; 100] = core::array::from_fn(|i| u32::try_from(i).unwrap());
        let mut b = a;
        Stream::new(1, Purpose::Test(1)).shuffle(0, &mut a);
        Stream::new(2, Purpose::Test(1)).shuffle(0, &mut b);
        assert_ne!(a, b);
        a.sort_unstable();
        assert!(a.iter().enumerate().all(|(i, &x)| i == x as usize));
    }
}
