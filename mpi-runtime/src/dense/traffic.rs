//! What a rank sends and receives so that replicas stay together: arithmetic, for any number of
//! ranks.
//!
//! Under `bsp` a step has the same sums on every trainer ([`of_step`]); of a method with rounds it
//! is a *round* that is told ([`of_round`]), in which every instance of the method does what it
//! does once; of parameter servers, a batch of every worker. Replicas that are not finite, and
//! trainers that have ended, send less.

use core::ops::Range;

use umbra_core::compress::Coding;
use umbra_core::model::Model;
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::{Dealing, Method, Note, Part};

use crate::comm::post::of_message;
use crate::comm::reduce::of_sum;
use crate::comm::traffic::{Traffic, of_exchange};
use crate::dense::group_sums::of_group_sum;
use crate::dense::served::center_rank;
use crate::dense::stretches::Stretches;
use crate::launch::roles::Roles;

/// A sum over all trainers: so many f32s, and so many f64s beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// A gradient, or statistics. Elements.
    pub values: usize,
    /// Weights, losses, statistics while they are computed. Elements.
    pub few: usize,
}

/// What trainer `trainer` of `trainers` sends and receives in a step with these sums; `coded`: how
/// those of all parameters of a model are.
#[must_use]
pub fn of_step(
    sums: &[Sum],
    (trainers, trainer): (usize, usize),
    coded: Option<(Coding, &Model)>,
) -> Traffic {
    let of_each = |sum: &Sum| match coded {
        Some((coding, model)) if sum.values == model.parameters_len() => {
            let parts = Stretches::new(model, &(0..sum.values));
            of_coded_sum((trainers, trainer), (coding, &parts), sum.few)
        }
        _ => of_sum(trainers, trainer, sum.values, sum.few),
    };
    sums.iter().map(of_each).fold(Traffic::default(), Traffic::plus)
}

/// What a trainer is expected to send and receive in a sum of which what matters is sent
/// (`coded_sum.rs`), with so many f64s beside it.
fn of_coded_sum(
    (trainers, trainer): (usize, usize),
    (coding, parts): (Coding, &Stretches),
    few: usize,
) -> Traffic {
    let exchanged = |bytes: usize| {
        let each = || core::iter::repeat_n(bytes, trainers);
        of_exchange(trainer, each(), each())
    };
    // To owners and back, each time with how much comes.
    let there = exchanged(parts.pieces_len(coding, trainers)).plus(exchanged(size_of::<u64>()));
    of_sum(trainers, trainer, parts.plain_len(), few).plus(there).plus(there)
}

/// What each of `ranks` ranks sends and receives in a round of `method` over replicas of
/// `elements`, with so many workers per trainer. Of groups that change it is the first round.
/// Empty when nothing is known: groups that follow nodes, which only a launch has, and groups that
/// average what has moved. `coded`: how replicas of a model are.
#[must_use]
pub fn of_round(
    method: &Method<'_>,
    (elements, coded): (usize, Option<(Coding, &Model)>),
    workers: usize,
    roles: &Roles,
    ranks: usize,
) -> Vec<Traffic> {
    // What is sent as it is takes no detour.
    let coded = coded.filter(|(coding, _)| !coding.is_all());
    let values = |slice: Range<usize>| match coded {
        Some((coding, model)) => {
            Stretches::new(model, &slice).message_len(coding).div_ceil(size_of::<f32>())
        }
        None => slice.len(),
    };
    let trainers = roles.trainers.len();
    let mut traffic = vec![Traffic::default(); ranks];
    let of_trainers = roles.trainers.ranks().iter().enumerate();
    match method.dealing() {
        _ if method.serving().is_some() => {
            of_batches(method, elements, values, workers, roles, &mut traffic)
        }
        _ if method.has_centers() => {
            let instances = method.instances(trainers, workers);
            for number in 0..instances.len() {
                let Part::Trainer { trainer, slice, .. } = instances.part(number) else { continue };
                let center = roles.sync_ps.rank_of(slice);
                let trainer = roles.trainers.rank_of(trainer);
                if center == trainer {
                    continue;
                }
                // Values there and values back.
                let there = of_message(values(method.slice(slice, elements)));
                for rank in [center, trainer] {
                    traffic[rank] = traffic[rank].plus(there).plus(there.turned());
                }
            }
        }
        Some(Dealing::Nodes { .. }) => return vec![],
        Some(_) if coded.is_some() => return vec![],
        Some(dealing) => {
            let mut labels = vec![0; trainers];
            dealing.label(0, &mut labels);
            let (mut sizes, mut places) = (vec![0; trainers], vec![0; trainers]);
            for (label, place) in labels.iter().zip(&mut places) {
                *place = sizes[*label];
                sizes[*label] += 1;
            }
            for (trainer, rank) in of_trainers {
                let size = sizes[labels[trainer]];
                traffic[*rank] = of_group_sum(size, places[trainer], elements + TAIL);
            }
        }
        None if method.averages() => {
            for (trainer, rank) in of_trainers {
                traffic[*rank] = match coded {
                    Some((coding, model)) => {
                        let parts = Stretches::new(model, &(0..elements));
                        of_coded_sum((trainers, trainer), (coding, &parts), TAIL)
                    }
                    None => of_sum(trainers, trainer, elements + TAIL, 0),
                };
            }
        }
        None => {}
    }
    traffic
}

/// Adds what parameter servers, workers and the dispatcher say for a batch of every worker; see the
/// table in `umbra_core::sync::server`.
fn of_batches(
    method: &Method<'_>,
    elements: usize,
    values: impl Fn(Range<usize>) -> usize,
    workers: usize,
    roles: &Roles,
    traffic: &mut [Traffic],
) {
    let all = method.instances(roles.trainers.len(), workers);
    let rank_of = |number: usize| match all.part(number) {
        Part::Trainer { trainer, .. } => roles.trainers.rank_of(trainer),
        Part::Center { slice } => center_rank(method, roles, slice),
    };
    let note = size_of::<Note>() / size_of::<f32>();
    let mut send = |from: usize, to: usize, values: usize| {
        let (from, to) = (rank_of(from), rank_of(to));
        if from != to {
            traffic[from] = traffic[from].plus(of_message(values));
            traffic[to] = traffic[to].plus(of_message(values).turned());
        }
    };
    let dispatcher = method.dispatcher(all);
    for worker in 0..all.trainers * all.gates {
        send(dispatcher, worker, note);
        for slice in 0..method.slices() {
            let (server, values) = (all.center(slice), values(method.slice(slice, elements)));
            // It asks, and brings its gradient; it gets the values, and that they have come.
            for (there, back) in [(0, values), (values, 0)] {
                send(worker, server, there);
                send(server, worker, back);
            }
        }
        send(worker, dispatcher, note);
        (all.center(0)..dispatcher).for_each(|hears| send(dispatcher, hears, note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SyncMethod;
    use umbra_core::sync::{Algorithm, Pair};

    fn method(algorithm: Algorithm<'_>) -> Method<'_> {
        Method { algorithm, ..Method::NONE }
    }

    /// What all send is what all receive, whatever the method, the ranks and the replica.
    #[test]
    fn what_all_send_all_receive() {
        let methods = [
            Algorithm::Average { delta: false },
            Algorithm::DivideShuffle { dealing: Dealing::Grid { columns: 3 }, delta: false },
            Algorithm::DivideShuffle { dealing: Dealing::Ring, delta: false },
            Algorithm::DivideShuffle {
                dealing: Dealing::Random { group: 4, seed: 1 },
                delta: false,
            },
            Algorithm::Elastic { pair: Pair::Sequential, slices: 2 },
            SyncMethod::Gba.shape().algorithm,
        ];
        for algorithm in methods {
            for ranks in [2, 3, 8, 17] {
                for elements in [10, 3_000, 100_001] {
                    let roles = Roles::collocated(ranks, 2, 1);
                    let round = of_round(&method(algorithm), (elements, None), 1, &roles, ranks);
                    let all = round.into_iter().fold(Traffic::default(), Traffic::plus);
                    assert!(all.messages_sent > 0, "{algorithm:?}");
                    assert_eq!(all, all.turned(), "{algorithm:?}: {ranks} × {elements}");
                }
            }
        }
    }

    #[test]
    fn a_center_exchanges_with_every_other_trainer() {
        let elastic = method(Algorithm::Elastic { pair: Pair::Sequential, slices: 1 });
        let round = of_round(&elastic, (1000, None), 1, &Roles::collocated(5, 1, 1), 5);
        let bytes = 4 * (5 + 1000);
        assert_eq!((round[0].messages_sent, round[0].bytes_sent), (4, 4 * bytes));
        assert_eq!((round[4].messages_received, round[4].bytes_received), (1, bytes));
    }

    /// A trainer beside a rank that serves: its worker fetches and brings every element.
    #[test]
    fn a_batch_moves_the_replica_there_and_back() {
        let round =
            of_round(&SyncMethod::Gba.shape(), (1000, None), 1, &Roles::separate(1, 1, 1, 1), 3);
        let (note, bytes) = (4 * (5 + 8), 4 * (5 + 1000));
        let worker = (round[0].bytes_sent, round[0].bytes_received);
        assert_eq!(worker, (note + bytes + 4 * 5, note + bytes + 4 * 5));
        assert_eq!((round[0].messages_sent, round[0].messages_received), (3, 3));
    }

    #[test]
    fn a_mean_over_all_moves_twice_the_replica() {
        let roles = Roles::collocated(4, 0, 1);
        let average = method(Algorithm::Average { delta: false });
        let round = of_round(&average, (1_000_000 - TAIL, None), 1, &roles, 4);
        assert_eq!(round[0].bytes_sent, 2 * 3 * 1_000_000);
    }
}
