//! What a rank writes and reads: its sections of the state as named tensors.
//!
//! | tensor | shape | what |
//! | --- | --- | --- |
//! | `dense.NAME` | as the model's | a tensor of the model that is evaluated, row-major |
//! | `dense.NAME.state.K` | the same | plane K of its optimizer state |
//! | `rows.P` | rows, values + state | f32s: rows P, P + partitions, P + 2 · partitions, … |
//! | `rows.P.index`, `rows.P.changed` | n; n, values + state | in its place: the n that changed |
//! | `job.NAME` | | how far the job is |
//! | `trainer.T.replica` | values | the replica of trainer T, in the order of `dense.*` |
//! | `trainer.T.optimizer` | planes, parameters | its optimizer state, each plane in that order |
//! | `trainer.T.NAME` | | its counts |
//! | `method.trainer.T.slice.S.gate.G.NAME` | | what the method remembers of a slice |
//! | `method.center.S.NAME` | | the same, at the center of the slice |
//!
//! Trainers have tensors of their own where their replicas differ.

use umbra_core::model::Model;
use umbra_core::sparse::Record;
use umbra_core::sync::Part;

use super::file::Tensor;
use crate::config::RowPrecision;
use crate::state::section::{MEAN_OPTIMIZER, OPTIMIZER, PUBLISHED, REPLICA};
use crate::state::{Kind, Scope, Section, Words};

/// The state of a rank, and what it belongs to.
#[derive(Clone, Copy)]
pub struct Contents<'a> {
    /// Whose dense parameters those are.
    pub model: &'a Model,
    /// The state of this rank.
    pub sections: &'a [Section<'a>],
    /// What a record of rows is.
    pub record: Record,
    /// What rows are written as.
    pub row_precision: RowPrecision,
    /// Trainers' replicas differ from each other, or from the model that is evaluated.
    pub own_replicas: bool,
    /// This is the rank that writes what all have alike.
    pub first: bool,
}

/// A tensor to be written, and where its words are.
pub(super) struct Item<'a> {
    pub(super) tensor: Tensor,
    pub(super) words: Source<'a>,
}

/// Writes the next words of a source, and says how many.
type Pieces<'a> = dyn FnMut(&mut [u32]) -> usize + 'a;

/// Words in the order of files.
pub(super) enum Source<'a> {
    /// As they stand.
    Section { words: &'a Words<'a>, next: usize },
    /// Those that are left of a copy in the order of files.
    Copied(&'a [u32]),
    /// Those that this writes, in pieces of its own; 0 at the end.
    Pieces(Box<Pieces<'a>>),
    /// A model's: word by word, from these places.
    Places { words: &'a Words<'a>, places: Box<dyn Iterator<Item = usize> + 'a> },
}

impl Source<'_> {
    /// The next words, as many as `out` has; fewer at the end, or of pieces, for which it has room
    /// for one at least. Returns how many.
    pub(super) fn fill(&mut self, out: &mut [u32]) -> usize {
        match self {
            Self::Section { words, next } => {
                let length = out.len().min(words.len() - *next);
                words.copy_out(*next, &mut out[..length]);
                *next += length;
                length
            }
            Self::Copied(words) => {
                let (now, left) = words.split_at(out.len().min(words.len()));
                out[..now.len()].copy_from_slice(now);
                *words = left;
                now.len()
            }
            Self::Pieces(write) => write(out),
            Self::Places { words, places } => {
                let mut length = 0;
                for (word, place) in out.iter_mut().zip(places) {
                    words.copy_out(place, core::slice::from_mut(word));
                    length += 1;
                }
                length
            }
        }
    }
}

impl<'a> Contents<'a> {
    /// All tensors of this rank.
    pub(super) fn items(&self) -> Vec<Item<'a>> {
        let mut items = if self.first { self.dense() } else { vec![] };
        let of_sections = self.sections.iter().filter(|section| self.is_written(section));
        items.extend(of_sections.map(|section| self.item(section)));
        items
    }

    fn is_written(&self, section: &Section<'_>) -> bool {
        match section.scope {
            Scope::Job => self.first,
            Scope::Partition(_) => true,
            Scope::Trainer(_) | Scope::Slice(_) => is_own(section, self.own_replicas),
        }
    }

    fn item(&self, section: &'a Section<'a>) -> Item<'a> {
        let words = &section.words;
        let values = words.len() as u64 * 4 / words.kind().bytes();
        let parameters = self.model.parameters_len();
        let shape = match (section.scope, section.name) {
            (Scope::Partition(_), _) => {
                let rows = words.len() / self.record.words();
                vec![rows as u64, self.record.len_f32() as u64]
            }
            (Scope::Trainer(_), OPTIMIZER) => {
                vec![values / (parameters as u64).max(1), parameters as u64]
            }
            _ => vec![values],
        };
        let source = match (section.scope, section.name) {
            (Scope::Trainer(_), REPLICA | OPTIMIZER) => {
                Source::Places { words, places: Box::new(places(self.model, section)) }
            }
            _ => Source::Section { words, next: 0 },
        };
        let (record, kind) = match (section.scope, self.row_precision) {
            (Scope::Partition(_), RowPrecision::F32) => (Some(self.record), words.kind()),
            (Scope::Partition(_), RowPrecision::Bf16) => (Some(self.record), Kind::Bf16),
            _ => (None, words.kind()),
        };
        Item { tensor: Tensor { name: name(section), kind, shape, record }, words: source }
    }

    /// The model that is evaluated: what is published, where that is another than a trainer's own.
    fn dense(&self) -> Vec<Item<'a>> {
        let either = |first: &str, second: &str| {
            let named = |name: &str| {
                let mut sections = self.sections.iter();
                sections.find(|it| matches!(it.scope, Scope::Trainer(_)) && it.name == name)
            };
            named(first).or_else(|| named(second)).map(|section| &section.words)
        };
        let (replica, state) = (either(PUBLISHED, REPLICA), either(MEAN_OPTIMIZER, OPTIMIZER));
        let item = |DenseTensor { name, shape, first, tensor }: DenseTensor,
                    words: &'a Words<'a>| {
            let places = Box::new(tensor.places().map(move |place| first + place));
            let shape = shape.map(|extent| extent as u64).to_vec();
            Item {
                tensor: Tensor { name, kind: Kind::F32, shape, record: None },
                words: Source::Places { words, places },
            }
        };
        let planes = |words: &Words<'_>| words.len() / self.model.parameters_len().max(1);
        let mut items = vec![];
        if let Some(words) = replica {
            items.extend(values(self.model).map(|tensor| item(tensor, words)));
        }
        if let Some(words) = state {
            items.extend(states(self.model, planes(words)).map(|tensor| item(tensor, words)));
        }
        items
    }
}

/// A tensor of the model that is evaluated.
pub(super) struct DenseTensor {
    pub(super) name: String,
    pub(super) shape: [usize; 2],
    /// Of the plane, in its section.
    first: usize,
    pub(super) tensor: umbra_core::model::Tensor,
}

/// The model's tensors, in the order of files.
pub(super) fn values(model: &Model) -> impl Iterator<Item = DenseTensor> + '_ {
    model.tensors().map(|tensor| DenseTensor {
        name: format!("dense.{}", tensor.name),
        shape: [tensor.rows, tensor.columns],
        first: 0,
        tensor,
    })
}

/// Those of `planes` planes of optimizer state, in the order of files.
pub(super) fn states(model: &Model, planes: usize) -> impl Iterator<Item = DenseTensor> + '_ {
    let of_plane = move |plane: usize| {
        model.tensors().filter(|tensor| tensor.trainable).map(move |tensor| DenseTensor {
            name: format!("dense.{}.state.{plane}", tensor.name),
            shape: [tensor.rows, tensor.columns],
            first: plane * model.parameters_len(),
            tensor,
        })
    };
    (0..planes).flat_map(of_plane)
}

/// Where the words of a trainer's replica or optimizer state stand, in the order of files.
pub(super) fn places<'a>(
    model: &'a Model,
    section: &Section<'_>,
) -> impl Iterator<Item = usize> + 'a {
    let len = section.words.len();
    let plane = if section.name == OPTIMIZER { model.parameters_len() } else { len };
    (0..len.checked_div(plane).unwrap_or(0))
        .flat_map(move |number| model.places().take(plane).map(move |place| number * plane + place))
}

/// Whether it is a trainer's or an instance's own, beside the model: its replica and optimizer
/// state are where trainers' differ.
pub(super) fn is_own(section: &Section<'_>, own_replicas: bool) -> bool {
    match (section.scope, section.name) {
        (Scope::Trainer(_), PUBLISHED | MEAN_OPTIMIZER) => false,
        (Scope::Trainer(_), REPLICA | OPTIMIZER) => own_replicas,
        (Scope::Trainer(_) | Scope::Slice(_), _) => true,
        (Scope::Job | Scope::Partition(_), _) => false,
    }
}

/// The name of a section's tensor.
pub(super) fn name(section: &Section<'_>) -> String {
    let own = section.name;
    match section.scope {
        Scope::Job => format!("job.{own}"),
        Scope::Trainer(trainer) => format!("trainer.{trainer}.{own}"),
        Scope::Slice(Part::Trainer { trainer, slice, gate }) => {
            format!("method.trainer.{trainer}.slice.{slice}.gate.{gate}.{own}")
        }
        Scope::Slice(Part::Center { slice }) => format!("method.center.{slice}.{own}"),
        Scope::Partition(partition) => rows(partition),
    }
}

/// The name of a partition's tensor.
pub(super) fn rows(partition: u32) -> String {
    format!("rows.{partition}")
}

/// The names of the tensors that stand in the place of a partition's, where only some rows are
/// written: which, and their records.
pub(super) fn changed(rows: &str) -> [String; 2] {
    [format!("{rows}.index"), format!("{rows}.changed")]
}
