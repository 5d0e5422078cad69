//! Requests for rows, from the words of a message to the answer: through the router of a rank and
//! its partitions, on one thread.

use crossbeam_channel::{Receiver, unbounded};
use umbra_core::compress::{Coding, Keep, Values};
use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling as HowPooled};
use umbra_core::optim::SparseOptimizer;
use umbra_core::sparse::Partitioning;
use umbra_mpi::config::{Config, convert};
use umbra_mpi::rows::bag_wire::{BagList, byte_sections, write_bag_push};
use umbra_mpi::rows::partition::{Taking, serve};
use umbra_mpi::rows::pooling::{PoolRules, Pooling};
use umbra_mpi::rows::router::{Answer, Errand, Pool, Router};
use umbra_mpi::rows::tables::{Partition, TableLayout};
use umbra_mpi::rows::wire::{
    Asker, HEADER_LEN, Header, Kind, LookupToken, PushToken, write_lookup, write_push,
};

use super::messages::{bytes, words};
use super::settings::least;
use super::targets::Fuzzed;

const MODEL: ModelConfig<'static> = ModelConfig {
    kind: ModelKind::Fm,
    dense_features: 0,
    fields: 2,
    embedding_dim: 3,
    pooling: HowPooled::Sum,
    bottom: &[],
    top: &[],
    cross: Cross::NONE,
    batch_norm: false,
    batch_norm_momentum: 0.1,
    dropout: 0.0,
};

/// Rows of every table, and partitions over all ranks: this one has two of them.
const CARDINALITY: [u64; 2] = [30, 11];
const PARTITIONS: u32 = 4;
const OWN: [u32; 2] = [1, 3];

/// Rank 1, which holds rows and has two workers; rank 0 asks.
struct Rank {
    layout: TableLayout,
    partitions: [Partition; 2],
    router: Router,
    errands: [Receiver<Errand>; 2],
    answers: Vec<Receiver<Answer>>,
    out: Receiver<(usize, Vec<u32>)>,
}

impl Rank {
    fn new(pooled: bool) -> Self {
        let model = Model::new(&MODEL).unwrap();
        let job = Config::parse("", "job.toml".as_ref(), &least()).unwrap();
        let optimizer: SparseOptimizer = convert::sparse_optimizer(&job.optim.sparse);
        let width = model.row_width();
        let layout = TableLayout::new(&CARDINALITY, PARTITIONS, width, optimizer).unwrap();
        let partitions =
            OWN.map(|number| Partition::initialized(number, &layout, &model, 1).unwrap());
        let [(one, first), (three, second)] = [(); 2].map(|()| unbounded());
        let (workers, answers) = (0..2).map(|_| unbounded()).unzip();
        let (link, out) = unbounded();
        let keep = Keep { share: 0.5, refresh_every: 3 };
        let rules = PoolRules {
            partitioning: Partitioning { partitions: PARTITIONS },
            width,
            fields: 2,
            always: model.first_order_columns(),
            coding: Coding { keep, values: Values::Bf16 },
        };
        let router = Router {
            rank: 1,
            width,
            value_words: layout.record().value_words(),
            partitions: vec![(OWN[0], one), (OWN[1], three)],
            row_ends: OWN.map(|number| layout.row_end_of(number)).to_vec(),
            workers,
            first_worker: 3,
            links: vec![link],
            pool: Pool::new(4),
            pooling: pooled.then(|| Pooling::new(rules, 1)),
        };
        Self { layout, partitions, router, errands: [first, second], answers, out }
    }

    /// Delivers a message of rank 0, lets the partitions serve it, and looks at the answer.
    fn read(&self, words: Vec<u32>) -> Result<bool, String> {
        let header = Header::read(&words);
        if self.router.deliver(0, words).is_err() {
            return Ok(false);
        }
        let header = header.ok_or("a message without a header was delivered")?;
        let is_request = header.kind.is_lookup() || header.kind.is_push();
        for ((number, thread), (errands, own)) in
            self.router.partitions.iter().zip(self.errands.iter().zip(&self.partitions))
        {
            let _ = thread.send(Errand::End);
            assert_eq!(*number, own.number);
            serve(own, &self.layout, &Taking::AtOnce, errands, &self.router);
        }
        let answers: Vec<_> = self.out.try_iter().collect();
        let here: usize = self.answers.iter().map(|answers| answers.try_iter().count()).sum();
        match (is_request, &answers[..], here) {
            (true, [(0, answer)], 0) => answered(header, answer).map(|()| true),
            (false, [], 1..) => Ok(true),
            _ => Err(format!("{} answers and {here} here to {header:?}", answers.len())),
        }
    }
}

/// An answer is to what was asked.
fn answered(asked: Header, answer: &[u32]) -> Result<(), String> {
    let header = Header::read(answer).ok_or("an answer without a header")?;
    let expected = match asked.kind {
        kind if kind.is_push() => Kind::Ack,
        kind if kind.is_bag_lookup() => Kind::Pooled,
        _ => Kind::Rows,
    };
    let fits = (header.kind, header.clock, header.asker) == (expected, asked.clock, asked.asker);
    let whole = expected != Kind::Pooled || byte_sections(answer, Kind::Pooled).whole();
    if fits && whole { Ok(()) } else { Err(format!("{header:?} to {asked:?}")) }
}

/// Whether a message is of batches that a dispatcher hands out: this rank has none.
fn is_of_tokens(words: &[u32]) -> bool {
    use Kind::{TokenBagLookup, TokenBagPush, TokenLookup, TokenPush};
    let of_tokens = [TokenLookup, TokenPush, TokenBagLookup, TokenBagPush];
    let tokens = (LookupToken::read(words), PushToken::read(words));
    debug_assert!(tokens.1.is_none() || tokens.0.is_some());
    Header::read(words).is_some_and(|header| of_tokens.contains(&header.kind))
}

const fn header(kind: Kind) -> Header {
    Header { kind, clock: 4, asker: Asker::Worker(3) }
}

/// Row numbers that partition 1 has, and 3.
const ROWS: [[u32; 3]; 2] = [[1, 5, 37], [3, 7, 39]];

pub(super) fn rows() -> Fuzzed {
    let mut good = vec![];
    let width = Model::new(&MODEL).unwrap().row_width();
    for kind in [Kind::Lookup, Kind::LookupNow, Kind::TokenLookup] {
        let mut words = vec![];
        header(kind).write(&mut words);
        if kind == Kind::TokenLookup {
            LookupToken { version: 1 }.write(&mut words);
        }
        for (partition, rows) in OWN.into_iter().zip(ROWS) {
            write_lookup(&mut words, partition, 3, rows.into_iter());
        }
        good.push(bytes(&words));
    }
    for kind in [Kind::Push, Kind::TokenPush] {
        let mut words = vec![];
        header(kind).write(&mut words);
        if kind == Kind::TokenPush {
            PushToken { place: 1, batch: 2, rate: 0.5 }.write(&mut words);
        }
        for (partition, rows) in OWN.into_iter().zip(ROWS) {
            write_push(&mut words, partition, (3, 0.5), 3, rows.into_iter());
            words.resize(words.len() + 3 * width, 1.0f32.to_bits());
        }
        good.push(bytes(&words));
    }
    for kind in [Kind::Rows, Kind::Ack] {
        let mut words = vec![];
        header(kind).write(&mut words);
        words.resize(HEADER_LEN + 9, 1);
        good.push(bytes(&words));
    }
    let rank = Rank::new(false);
    Fuzzed::new(good, move |case, _| {
        let words = words(case);
        if is_of_tokens(&words) { Ok(false) } else { rank.read(words) }
    })
}

/// A lookup of bags, and behind it gradients of them.
pub(super) fn bags() -> Fuzzed {
    let mut good = vec![];
    for (weights, scales) in [(false, false), (true, true)] {
        let mut list = BagList::default();
        for (bag, rows) in [(2, &[5, 7][..]), (3, &[9]), (40, &[1, 3, 37])] {
            list.rows.extend(rows);
            list.add(bag, rows.len() as u32);
            if weights {
                list.weights.extend(vec![0.5; rows.len()]);
            }
            if scales {
                list.scales.push(0.25);
            }
        }
        for kind in [Kind::BagLookup, Kind::BagLookupNow] {
            let mut words = vec![];
            header(kind).write(&mut words);
            list.write(&mut words, 3);
            good.push(bytes(&words));
        }
    }
    let lookup = words(&good[0]);
    // As many gradients as elements came: a few of the numbers that may be.
    for count in [0, 6, 7, 8, 12] {
        let mut words = vec![];
        header(Kind::BagPush).write(&mut words);
        write_bag_push(&mut words, (3, 0.5), &vec![1; 2 * count], 2);
        good.push(bytes(&words));
    }
    let rank = Rank::new(true);
    Fuzzed::new(good, move |case, dice| {
        let words = words(case);
        if is_of_tokens(&words) {
            return Ok(false);
        }
        // Gradients are of what was asked for before.
        if Header::read(&words).is_some_and(|it| it.kind == Kind::BagPush) && dice.below(2) == 0 {
            rank.read(lookup.clone())?;
        }
        rank.read(words)
    })
}
