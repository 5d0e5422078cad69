//! The store of embedding rows.
//!
//! A row and its optimizer state are one record, `[values | state]`, so that they travel, are saved
//! and are recovered together. Words are relaxed atomics like the dense replica's: on one rank the
//! workers share a store Hogwild-fashion, and so do those of ranks of one node; else each partition
//! has one thread that writes to it, and the words cost nothing more.
//!
//! Values are f32s, or bf16s that are rounded stochastically wherever a row is written
//! (`rounding.rs`); what reads rows gets f32s, and state is f32.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use super::record::Record;
use super::rounding::Rounding;
use crate::kernel::Precision;
use crate::kernel::isa::{Isa, Kernel, run};
use crate::kernel::prefetch::{BURST, FarRows};
use crate::kernel::row_values::{Rounded, Whole, load_pairs, store_pairs};
use crate::kernel::words::{all_finite_with, load_with, store_with, touch_with};
use crate::optim::{RowLoop, RowRule, SparseOptimizer};
use crate::recovery::usage::Usage;

/// Records of rows over lent words.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    words: &'a [AtomicU32],
    record: Record,
    /// How values are rounded, where they are bf16s.
    rounding: Rounding,
    usage: Usage<'a>,
}

impl<'a> Table<'a> {
    /// A store of f32s over `words: [rows * (width + state_len)]`.
    #[must_use]
    pub const fn new(words: &'a [AtomicU32], width: usize, state_len: usize) -> Self {
        let record = Record { width, state_len, precision: Precision::F32 };
        Self::of(words, record, Rounding::NONE)
    }

    /// A store of such records over `words: [rows * record.words()]`. `rounding` is used where
    /// values are bf16s.
    #[must_use]
    pub const fn of(words: &'a [AtomicU32], record: Record, rounding: Rounding) -> Self {
        assert!(words.len().is_multiple_of(record.words()), "words are no whole records");
        Self { words, record, rounding, usage: Usage::None }
    }

    /// The same store, whose updates are counted in `usage`.
    #[must_use]
    pub const fn counted(self, usage: Usage<'a>) -> Self {
        Self { usage, ..self }
    }

    /// The same store, whose rows are rounded as in step `clock` of `worker`: what is updated twice
    /// should differ in one of them. Without meaning where values are f32s.
    #[must_use]
    pub const fn at(self, clock: u32, worker: u32) -> Self {
        Self { rounding: self.rounding.at(clock, worker), ..self }
    }

    /// The same store, whose values are the words that they stand in, as bits of f32s: to be copied
    /// by [`Self::read`], not to be computed with.
    #[must_use]
    pub const fn as_stored(self) -> Self {
        let width = self.record.value_words();
        Self { record: Record { width, precision: Precision::F32, ..self.record }, ..self }
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.words.len() / self.record_len()
    }

    /// Words of a record.
    #[must_use]
    pub const fn record_len(&self) -> usize {
        self.record.words()
    }

    /// The words of the record at `index`.
    #[must_use]
    pub fn record(&self, index: usize) -> &'a [AtomicU32] {
        &self.words[index * self.record_len()..][..self.record_len()]
    }

    /// Copies the values of the rows at `indices` out, one behind the other. `out: [indices,
    /// width]`
    pub fn read(&self, indices: impl Iterator<Item = usize> + Clone, out: &mut [f32]) {
        run(Read { table: *self, rows: indices.zip(0..), out });
    }

    /// The same of `rows`, each with its place in `out: [places, width]`, whose others stay.
    ///
    /// # Panics
    /// When there are fewer places.
    pub fn read_to(&self, rows: impl Iterator<Item = (usize, usize)> + Clone, out: &mut [f32]) {
        run(Read { table: *self, rows, out });
    }

    /// Writes the values of the row at `index`, rounded where they are bf16s, and its state, or the
    /// part of it that is given. `values: [width]`, `state: [0..=state_len]`
    pub fn write(&self, index: usize, values: &[f32], state: &[f32]) {
        run(Write { table: *self, index, values, state });
    }

    /// Updates the rows at `indices` with their gradients: distinct rows, each with the whole
    /// gradient of the step. A row whose gradient is not finite stays as it is, since all would
    /// read what became of it; returns how many did. `gradients: [indices, width]`
    pub fn update(
        &self,
        optimizer: &SparseOptimizer,
        rate: f32,
        indices: impl Iterator<Item = usize> + Clone,
        gradients: &[f32],
    ) -> usize {
        self.update_from(optimizer, rate, indices.zip(0..), gradients)
    }

    /// The same of `rows`, each with the place of its gradient. `gradients: [places, width]`
    ///
    /// # Panics
    /// When there are fewer places.
    pub fn update_from(
        &self,
        optimizer: &SparseOptimizer,
        rate: f32,
        rows: impl Iterator<Item = (usize, usize)> + Clone,
        gradients: &[f32],
    ) -> usize {
        let (table, next) = (*self, [].into_iter());
        let mut refused = 0;
        let counted = Some(&mut refused);
        run(Update { table, optimizer, rate, rows, next, gradients, refused: counted });
        refused
    }

    /// The same with gradients that are finite; asks for records at the indices in `next`
    /// meanwhile, as many as there are rows or a few more.
    pub(super) fn update_before(
        &self,
        optimizer: &SparseOptimizer,
        rate: f32,
        (rows, next): (impl Iterator<Item = (usize, usize)> + Clone, impl Iterator<Item = usize>),
        gradients: &[f32],
    ) {
        run(Update { table: *self, optimizer, rate, rows, next, gradients, refused: None });
    }

    /// Reads the records at `indices`, then writes them as they are: what a step that looks rows up
    /// and updates them cannot do without. Timed by the caller, it is the ceiling of both. Updates
    /// that others make meanwhile may be lost.
    pub fn touch(&self, indices: impl Iterator<Item = usize> + Clone) {
        run(Touch { table: *self, indices });
    }

    /// Updates a row, unless its gradient is not finite; says whether it did.
    #[inline(always)]
    pub(super) fn update_one<I: Isa>(
        &self,
        isa: I,
        (rule, rate): (impl RowRule, f32),
        index: usize,
        gradient: &[f32],
    ) -> bool {
        let sound = all_finite_with(isa, gradient);
        if sound {
            self.update_soundly(isa, (rule, rate), index, gradient);
        }
        sound
    }

    /// Updates a row with a finite gradient.
    #[inline(always)]
    fn update_soundly<I: Isa>(
        &self,
        isa: I,
        (rule, rate): (impl RowRule, f32),
        index: usize,
        gradient: &[f32],
    ) {
        self.update_knowing(isa, (rule, rate), index, (gradient, rule.know(isa, gradient)));
    }

    /// Updates a row with a finite gradient of which that is known.
    #[inline(always)]
    pub(super) fn update_knowing<I: Isa, R: RowRule>(
        &self,
        isa: I,
        (rule, rate): (R, f32),
        index: usize,
        of: (&[f32], R::Known),
    ) {
        let (values, state) = self.record(index).split_at(self.record.value_words());
        match self.record.precision {
            Precision::F32 => rule.update_row(isa, rate, (Whole(values), state), of),
            Precision::Bf16 => {
                let values = Rounded::new(values, self.rounding.key(index));
                rule.update_row(isa, rate, (values, state), of);
            }
        }
    }

    /// What values are.
    pub(super) const fn precision(&self) -> Precision {
        self.record.precision
    }

    /// All records.
    pub(super) const fn words(&self) -> &'a [AtomicU32] {
        self.words
    }

    /// Values of a row.
    pub(super) const fn width(&self) -> usize {
        self.record.width
    }

    /// What updates are counted in.
    pub(super) const fn usage(&self) -> Usage<'a> {
        self.usage
    }

    /// Where records stand.
    #[inline(always)]
    pub(super) fn far(&self) -> FarRows {
        FarRows::new(self.words, self.record_len())
    }
}

struct Read<'a, T> {
    table: Table<'a>,
    /// Index and place of each.
    rows: T,
    out: &'a mut [f32],
}

impl<T: Iterator<Item = (usize, usize)> + Clone> Kernel for Read<'_, T> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { table, rows, out } = self;
        let (far, mut ahead) = (table.far(), rows.clone());
        ahead.by_ref().take(BURST).for_each(|(index, _)| far.ask(index));
        for (number, (index, place)) in rows.enumerate() {
            if number.is_multiple_of(BURST) {
                ahead.by_ref().take(BURST).for_each(|(index, _)| far.ask(index));
            }
            let out = &mut out[place * table.width()..][..table.width()];
            let values = &table.record(index)[..table.record.value_words()];
            match table.record.precision {
                Precision::F32 => load_with(isa, values, out),
                Precision::Bf16 => load_pairs(isa, values, out),
            }
        }
    }
}

struct Write<'a> {
    table: Table<'a>,
    index: usize,
    values: &'a [f32],
    state: &'a [f32],
}

impl Kernel for Write<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { table, index, values, state } = self;
        let (to, to_state) = table.record(index).split_at(table.record.value_words());
        match table.record.precision {
            Precision::F32 => store_with(isa, to, values),
            Precision::Bf16 => {
                store_pairs(isa, Rounded::new(to, table.rounding.key(index)), values);
            }
        }
        to_state[..state.len()]
            .iter()
            .zip(state)
            .for_each(|(to, x)| to.store(x.to_bits(), Relaxed));
    }
}

struct Update<'a, T, N> {
    table: Table<'a>,
    optimizer: &'a SparseOptimizer,
    rate: f32,
    /// Index of each, and the place of its gradient.
    rows: T,
    /// Those that will be read behind it.
    next: N,
    gradients: &'a [f32],
    /// How many rows were left as they are; none where gradients are known to be finite.
    refused: Option<&'a mut usize>,
}

impl<T: Iterator<Item = (usize, usize)> + Clone, N: Iterator<Item = usize>> Kernel
    for Update<'_, T, N>
{
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let optimizer = self.optimizer;
        optimizer.run(isa, self);
    }
}

impl<T: Iterator<Item = (usize, usize)> + Clone, N: Iterator<Item = usize>> RowLoop
    for Update<'_, T, N>
{
    #[inline(always)]
    fn run<I: Isa>(self, isa: I, rule: impl RowRule) {
        let Self { table, rate, rows, mut next, gradients, mut refused, .. } = self;
        let usage = table.usage.of_a_call();
        let (far, mut ahead) = (table.far(), rows.clone());
        let mut ask = || {
            let rows = ahead.clone().take(BURST);
            ahead.by_ref().take(BURST).for_each(|(index, _)| far.ask(index));
            if usage.is_some() {
                rows.for_each(|(index, _)| usage.prefetch(index));
            }
        };
        ask();
        for (number, (index, place)) in rows.enumerate() {
            if number.is_multiple_of(BURST) {
                ask();
                next.by_ref().take(BURST).for_each(|index| far.ask(index));
            }
            let gradient = &gradients[place * table.width()..][..table.width()];
            match &mut refused {
                None => table.update_soundly(isa, (rule, rate), index, gradient),
                Some(refused) => {
                    if !table.update_one(isa, (rule, rate), index, gradient) {
                        **refused += 1;
                        continue;
                    }
                }
            }
            usage.count(index);
        }
    }
}

struct Touch<'a, T> {
    table: Table<'a>,
    indices: T,
}

impl<T: Iterator<Item = usize> + Clone> Kernel for Touch<'_, T> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { table, indices } = self;
        for write in [false, true] {
            let (far, mut ahead) = (table.far(), indices.clone());
            ahead.by_ref().take(BURST).for_each(|index| far.ask(index));
            for (number, index) in indices.clone().enumerate() {
                if number.is_multiple_of(BURST) {
                    ahead.by_ref().take(BURST).for_each(|index| far.ask(index));
                }
                core::hint::black_box(touch_with(isa, table.record(index), write));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::optim::{Optimizer, OptimizerKind};

    #[test]
    fn updates_one_record_and_leaves_its_neighbours() {
        let words = [const { AtomicU32::new(0) }; 9];
        let table = Table::new(&words, 2, 1);
        assert_eq!((table.rows(), table.record_len()), (3, 3));
        let sgd =
            SparseOptimizer::Elementwise(Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 });
        table.update(&sgd, 0.5, [1].into_iter(), &[1.0, -2.0]);
        let mut rows = [9.0; 6];
        table.read([2, 1, 0].into_iter(), &mut rows);
        assert_eq!(rows, [0.0, 0.0, -0.5, 1.0, 0.0, 0.0]);
        table.update_from(&sgd, 1.0, [(2, 1), (0, 2)].into_iter(), &[9.0, 9.0, 1.0, 2.0, 3.0, 4.0]);
        let mut rows = [7.0; 8];
        table.read_to([(0, 3), (2, 1)].into_iter(), &mut rows);
        assert_eq!(rows, [7.0, 7.0, -1.0, -2.0, 7.0, 7.0, -3.0, -4.0]);
    }

    #[test]
    fn touching_changes_nothing() {
        let words = [const { AtomicU32::new(0x1234_5678) }; 38];
        Table::new(&words, 18, 1).touch([1, 0, 1].into_iter());
        assert!(words.iter().all(|word| word.load(Relaxed) == 0x1234_5678));
    }

    /// Wherever in the row it stands: the record keeps its bits, state included, and the others
    /// move.
    #[test]
    fn a_row_whose_gradient_is_not_finite_stays_as_it_is() {
        let optimizer =
            SparseOptimizer::RowwiseAdagrad { eps: 1e-8, initial: 0.0, weight_decay: 0.1 };
        const WIDTH: usize = 19;
        for (at, bad) in (0..WIDTH).flat_map(|at| [f32::INFINITY, f32::NAN].map(|bad| (at, bad))) {
            let words = [const { AtomicU32::new(0x3f80_0000) }; 3 * (WIDTH + 1)];
            let table = Table::new(&words, WIDTH, 1);
            let mut gradients = [0.5; 3 * WIDTH];
            gradients[WIDTH + at] = bad;
            let refused = table.update(&optimizer, 0.1, [2, 1, 0].into_iter(), &gradients);
            assert_eq!(refused, 1, "{bad} at {at}");
            let bits = |index| table.record(index).iter().map(|word| word.load(Relaxed));
            assert!(bits(1).all(|word| word == 0x3f80_0000), "{bad} at {at}");
            for index in [0, 2] {
                assert!(bits(index).all(|word| word != 0x3f80_0000), "{bad} at {at}");
                assert!(bits(index).all(|word| f32::from_bits(word).is_finite()), "{bad} at {at}");
            }
        }
    }
}
