//! The sentences of `core/src/sync/`, on random numbers.
//!
//! Bounds on rounding: an element is made by fewer than ten operations, each of which is wrong by
//! at most 2^-24 of the largest number around, so a part of 1e-6 of that number is enough; sums
//! over rounds have their own.

use proptest::prelude::*;
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::{
    BlockMomentum, BlockState, Blocks, ElasticCenter, ElasticTrainer, ModelAverage, Pair,
};

use super::world::{Machine, Rank, World, intake};

const EPS: f32 = 1e-6;

/// Numbers of every size that training meets, and zero.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![-1f32..1.0, -1e4f32..1e4, -1e-4f32..1e-4, Just(0.0)]
}

/// Replicas of 1 to 5 trainers, of 1 to 20 elements each.
fn replicas() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1usize..6, 1usize..21).prop_flat_map(|(trainers, slice)| {
        prop::collection::vec(prop::collection::vec(number(), slice), trainers)
    })
}

fn largest(replicas: &[Vec<f32>]) -> f32 {
    replicas.iter().flatten().fold(0.0, |largest, x| largest.max(x.abs()))
}

fn is_near(x: f32, y: f64, scale: f32) -> bool {
    (f64::from(x) - y).abs() <= f64::from(EPS * scale)
}

/// What methods of averaging are lent.
struct Lent {
    staging: Vec<f32>,
    loaded: Vec<f32>,
    global: Vec<f32>,
    momentum: Vec<f32>,
}

fn lent(replicas: &[Vec<f32>], global: &[f32]) -> Vec<Lent> {
    let slice = global.len();
    let one = |_: &Vec<f32>| Lent {
        staging: vec![f32::NAN; slice + TAIL],
        loaded: vec![f32::NAN; slice],
        global: global.to_vec(),
        momentum: vec![0.0; slice],
    };
    replicas.iter().map(one).collect()
}

fn averages<'a>(lent: &'a mut [Lent], alpha: f32, delta: bool, replicas: &[Vec<f32>]) -> World<'a> {
    let one = |it: &'a mut Lent| {
        let machine = ModelAverage::new(&mut it.staging, alpha, intake(delta, &mut it.loaded));
        Box::new(machine) as Box<dyn Machine>
    };
    World::new(lent.iter_mut().map(one).collect(), replicas)
}

fn blocks<'a>(
    lent: &'a mut [Lent],
    (alpha, delta): (f32, bool),
    blocks: Blocks,
    parameters: usize,
    replicas: &[Vec<f32>],
) -> World<'a> {
    let one = |it: &'a mut Lent| {
        let state = BlockState { global: &mut it.global, momentum: &mut it.momentum };
        let intake = intake(delta, &mut it.loaded);
        let machine = BlockMomentum::new(&mut it.staging, alpha, intake, blocks, state, parameters);
        Box::new(machine) as Box<dyn Machine>
    };
    World::new(lent.iter_mut().map(one).collect(), replicas)
}

fn elastic<'a>(
    (lent, last): (&'a mut [Lent], &'a mut [f32]),
    center: &'a mut [f32],
    (alpha, pair): (f32, Pair),
    replicas: &[Vec<f32>],
) -> World<'a> {
    let trainers = replicas.len();
    let one = |it: &'a mut Lent| {
        let intake = intake(pair == Pair::Same, &mut it.loaded);
        let machine = ElasticTrainer::new(&mut it.staging, trainers, alpha, intake);
        Box::new(machine) as Box<dyn Machine>
    };
    let mut machines: Vec<Box<dyn Machine>> = lent.iter_mut().map(one).collect();
    machines.push(Box::new(ElasticCenter::new(last, center, alpha, pair, trainers)));
    World::new(machines, replicas)
}

/// Ends all trainers, which changes no replica.
fn end(mut world: World<'_>) -> Vec<Vec<f32>> {
    let before = values(&world);
    world.round(&vec![true; before.len()], |_, _| {});
    assert_eq!(values(&world), before, "a round of ended trainers");
    assert!((0..before.len()).all(|rank| world.has_finished(rank)) && world.is_quiet());
    before
}

fn values(world: &World<'_>) -> Vec<Vec<f32>> {
    world.ranks.iter().map(Rank::values).filter(|values| !values.is_empty()).collect()
}

/// Some trainers that are not finite, one at least that is.
fn split() -> impl Strategy<Value = (Vec<Vec<f32>>, Vec<bool>)> {
    replicas().prop_flat_map(|replicas| {
        let trainers = replicas.len();
        (Just(replicas), prop::collection::vec(any::<bool>(), trainers), 0..trainers).prop_map(
            |(replicas, mut out, kept)| {
                out[kept] = false;
                (replicas, out)
            },
        )
    })
}

/// Mean of the replicas that are `in` it, by element, in double precision.
fn mean(replicas: &[Vec<f32>], out: &[bool]) -> Vec<f64> {
    let counted: Vec<_> = replicas.iter().zip(out).filter(|(_, out)| !**out).collect();
    let sum = |i: usize| counted.iter().map(|(x, _)| f64::from(x[i])).sum::<f64>();
    (0..replicas[0].len()).map(|i| sum(i) / counted.len() as f64).collect()
}

proptest! {
    /// A replica that is not finite, wherever, has no part in the mean and becomes the mean; a
    /// trainer that has ended likewise. Others move by alpha.
    #[test]
    fn who_has_no_weight_becomes_the_mean(
        (replicas, out) in split(),
        at in any::<prop::sample::Index>(),
        bad in prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY)],
        (alpha, delta, ended) in (0f32..=1.0, any::<bool>(), any::<bool>()),
    ) {
        let (slice, scale) = (replicas[0].len(), largest(&replicas));
        let mut start = replicas.clone();
        for (replica, _) in start.iter_mut().zip(&out).filter(|(_, out)| **out) {
            replica[at.index(slice)] = bad;
        }
        let mut lent = lent(&replicas, &vec![0.0; slice]);
        let mut world = averages(&mut lent, alpha, delta, &start);
        let stops: Vec<bool> = out.iter().map(|out| *out && ended).collect();
        world.round(&stops, |_, _| {});
        let mean = mean(&replicas, &out);
        let mut found = None;
        for (rank, moved) in values(&world).into_iter().enumerate() {
            for (i, (x, mean)) in moved.iter().zip(&mean).enumerate() {
                let alpha = if out[rank] { 1.0 } else { f64::from(alpha) };
                let before = f64::from(replicas[rank][i]);
                let expected = if alpha == 1.0 { *mean } else { before + alpha * (mean - before) };
                prop_assert!(is_near(*x, expected, 2.0 * scale), "rank {rank}: {x}, not \
                    {expected}");
            }
            if out[rank] {
                let found = found.get_or_insert_with(|| moved.clone());
                prop_assert_eq!(found, &moved, "the same bits");
            }
        }
        end(world);
    }

    /// Without a finite replica there is no mean, and nobody is touched.
    #[test]
    fn all_not_finite_are_left_alone(
        replicas in replicas(), at in any::<prop::sample::Index>(), delta in any::<bool>(),
    ) {
        let slice = replicas[0].len();
        let mut start = replicas;
        start.iter_mut().for_each(|replica| replica[at.index(slice)] = f32::INFINITY);
        let rates = Blocks { rate: 0.5, momentum: 0.5, nesterov: true };
        let global = vec![0.0; slice];
        let (mut plain, mut lent) = (lent(&start, &global), lent(&start, &global));
        let mut average = averages(&mut plain, 0.5, delta, &start);
        let mut block = blocks(&mut lent, (0.5, delta), rates, slice, &start);
        for world in [&mut average, &mut block] {
            world.round(&vec![false; start.len()], |_, _| {});
            prop_assert_eq!(&values(world), &start);
        }
        end(average);
        end(block);
        prop_assert!(lent.iter().all(|it| it.global.iter().chain(&it.momentum).all(|x| *x == 0.0)));
    }

    /// Alpha 1 makes replicas equal, bit for bit, and one round of `once` is that.
    #[test]
    fn once_makes_all_replicas_the_mean(replicas in replicas()) {
        let mut lent = lent(&replicas, &vec![0.0; replicas[0].len()]);
        let one = |it| Box::new(ModelAverage::once(it)) as Box<dyn Machine>;
        let machines = lent.iter_mut().map(|it| one(&mut it.staging)).collect();
        let mut world = World::new(machines, &replicas);
        world.round(&vec![false; replicas.len()], |_, _| {});
        let after = values(&world);
        prop_assert!(after.iter().all(|replica| replica == &after[0]));
        let expected = mean(&replicas, &vec![false; replicas.len()]);
        let scale = largest(&replicas);
        prop_assert!(after[0].iter().zip(expected).all(|(x, y)| is_near(*x, y, scale)));
        prop_assert!((0..replicas.len()).all(|rank| world.has_finished(rank)));
    }

    /// What workers do while the reduction is under way: a delta keeps it whole, an interpolation
    /// the part 1 − alpha.
    #[test]
    fn work_during_a_round_is_kept(
        replicas in replicas(), alpha in 0f32..1.0, work in -2f32..2.0, delta in any::<bool>(),
    ) {
        let slice = replicas[0].len();
        let run = |work: f32| {
            let mut lent = lent(&replicas, &vec![0.0; slice]);
            let mut world = averages(&mut lent, alpha, delta, &replicas);
            world.round(&vec![false; replicas.len()], |rank, _| rank.train(|_, x| x + work));
            end(world)
        };
        let kept = if delta { f64::from(work) } else { f64::from((1.0 - alpha) * work) };
        let scale = 4.0 * (largest(&replicas) + work.abs());
        for (x, still) in run(work).into_iter().flatten().zip(run(0.0).into_iter().flatten()) {
            prop_assert!(is_near(x, f64::from(still) + kept, scale), "{x} after {still} + {kept}");
        }
    }

    /// ζ = 1 and μ = 0 is model averaging, to the last bit, whatever the global model was.
    #[test]
    fn block_momentum_without_momentum_is_model_averaging(
        replicas in replicas(),
        global in prop::collection::vec(number(), 20),
        (alpha, delta, nesterov) in (0f32..=1.0, any::<bool>(), any::<bool>()),
        parameters in any::<prop::sample::Index>(),
    ) {
        let global = &global[..replicas[0].len()];
        let (mut plain, mut lent) = (lent(&replicas, global), lent(&replicas, global));
        let rates = Blocks { rate: 1.0, momentum: 0.0, nesterov };
        let parameters = parameters.index(global.len() + 1);
        let mut average = averages(&mut plain, alpha, delta, &replicas);
        let mut block = blocks(&mut lent, (alpha, delta), rates, parameters, &replicas);
        for round in 0..3 {
            for world in [&mut average, &mut block] {
                let none_ended = vec![false; replicas.len()];
                world.round(&none_ended, |it, rank| it.train(|i, x| x + work(round, rank, i)));
            }
            prop_assert_eq!(values(&average), values(&block), "round {}", round);
        }
        end(average);
        end(block);
    }

    /// Twenty rounds of the paper's recursion, with W and W_g apart, in double precision;
    /// statistics are averaged. The global model has the same bits on all trainers.
    #[test]
    fn block_momentum_is_the_paper(
        replicas in replicas(),
        (rate, momentum) in (0.1f32..1.0, 0f32..0.9),
        (alpha, delta, nesterov) in (0.1f32..=1.0, any::<bool>(), any::<bool>()),
        parameters in any::<prop::sample::Index>(),
    ) {
        let slice = replicas[0].len();
        let global = replicas[0].clone();
        let mut lent = lent(&replicas, &global);
        let parameters = parameters.index(slice + 1);
        let rates = Blocks { rate, momentum, nesterov };
        let mut world = blocks(&mut lent, (alpha, delta), rates, parameters, &replicas);
        let wide = |x: &Vec<f32>| -> Vec<f64> { x.iter().map(|x| f64::from(*x)).collect() };
        let mut expected: Vec<Vec<f64>> = replicas.iter().map(wide).collect();
        let (mut w, mut w_g, mut step) = (wide(&global), wide(&global), vec![0.0; slice]);
        let mut scale = 1.0 + largest(&replicas);
        for round in 0..20 {
            world.round(&vec![false; replicas.len()], |it, rank| {
                it.train(|i, x| x + work(round, rank, i));
            });
            for i in 0..slice {
                let mean = expected.iter().map(|x| x[i]).sum::<f64>() / expected.len() as f64;
                if i < parameters {
                    let g = mean - w_g[i];
                    step[i] = f64::from(momentum) * step[i] + f64::from(rate) * g;
                    w[i] += step[i];
                    w_g[i] = w[i] + if nesterov { f64::from(momentum) * step[i] } else { 0.0 };
                } else {
                    w_g[i] = mean;
                }
                for (rank, x) in expected.iter_mut().enumerate() {
                    let (loaded, now) = (x[i], x[i] + f64::from(work(round, rank, i)));
                    let from = if delta { loaded } else { now };
                    x[i] = now + f64::from(alpha) * (w_g[i] - from);
                    scale = scale.max(x[i].abs() as f32);
                }
            }
        }
        for (x, y) in end(world).into_iter().flatten().zip(expected.into_iter().flatten()) {
            prop_assert!(is_near(x, y, 100.0 * scale), "{x}, not {y}");
        }
        for it in &lent {
            prop_assert_eq!(&it.global, &lent[0].global);
            prop_assert_eq!(&it.momentum, &lent[0].momentum);
            prop_assert!(it.global.iter().zip(&w_g).all(|(x, y)| is_near(*x, *y, 100.0 * scale)));
            prop_assert!(it.momentum[parameters..].iter().all(|x| *x == 0.0));
        }
    }

    /// Alone, an exchange of the sequential form leaves w − c as (1 − α)² of what it was; one of
    /// the same pair as 1 − 2α, and w + c as it was.
    #[test]
    fn an_exchange_shrinks_the_distance(w in number(), c in number(), alpha in 0f32..=1.0) {
        let scale = 8.0 * w.abs().max(c.abs());
        let distance = f64::from(w) - f64::from(c);
        let sequential = (Pair::Sequential, (1.0 - alpha).powi(2));
        for (pair, left) in [sequential, (Pair::Same, 1.0 - 2.0 * alpha)] {
            let replicas = [vec![w]];
            let (mut lent, mut last, mut center) = (lent(&replicas, &[c]), [0.0; 1 + TAIL], [c]);
            let scratch = (&mut lent[..], &mut last[..]);
            let mut world = elastic(scratch, &mut center, (alpha, pair), &replicas);
            world.exchange(0, 1);
            let moved = world.ranks[0].values()[0];
            drop(world);
            prop_assert!(is_near(moved - center[0], f64::from(left) * distance, scale), "{pair:?}");
            if pair == Pair::Same {
                prop_assert!(is_near(moved + center[0], f64::from(w) + f64::from(c), scale));
            }
        }
    }

    /// Σ w + c stays, however many trainers exchange and in whatever order.
    #[test]
    fn exchanges_of_the_same_pair_conserve_the_sum(
        replicas in replicas(),
        alpha in 0f32..=0.5,
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let (trainers, slice) = (replicas.len(), replicas[0].len());
        let (mut center, mut last) = (replicas[0].clone(), vec![0.0; slice + TAIL]);
        let mut lent = lent(&replicas, &center);
        let scratch = (&mut lent[..], &mut last[..]);
        let mut world = elastic(scratch, &mut center, (alpha, Pair::Same), &replicas);
        let round_robin = 0..trainers;
        let order = order.iter().map(|i| i.index(trainers));
        let order: Vec<usize> = round_robin.chain(order).collect();
        order.iter().for_each(|rank| world.exchange(*rank, trainers));
        let after = values(&world);
        drop(world);
        let scale = 2.0 * order.len() as f32 * largest(&replicas);
        for i in 0..slice {
            let sum = |replicas: &[Vec<f32>], center: f32| {
                replicas.iter().map(|x| f64::from(x[i])).sum::<f64>() + f64::from(center)
            };
            let (now, before) = (sum(&after, center[i]), sum(&replicas, replicas[0][i]));
            prop_assert!((now - before).abs() <= f64::from(EPS * scale), "{now} from {before}");
        }
    }

    /// A replica that is not finite never reaches the center, and becomes the center.
    #[test]
    fn a_replica_that_is_not_finite_becomes_the_center(
        replicas in replicas(), alpha in 0f32..=1.0, sequential in any::<bool>(),
    ) {
        let pair = if sequential { Pair::Sequential } else { Pair::Same };
        let (trainers, slice) = (replicas.len(), replicas[0].len());
        let (mut center, mut last) = (replicas[0].clone(), vec![f32::NAN; slice + TAIL]);
        let mut lent = lent(&replicas, &center);
        let mut start = replicas.clone();
        start[trainers - 1][slice - 1] = f32::NAN;
        let scratch = (&mut lent[..], &mut last[..]);
        let mut world = elastic(scratch, &mut center, (alpha, pair), &start);
        world.exchange(trainers - 1, trainers);
        prop_assert_eq!(&world.ranks[trainers - 1].values(), &replicas[0]);
        drop(world);
        prop_assert_eq!(&center, &replicas[0]);
    }
}

/// What the workers of a trainer do in a round.
fn work(round: usize, rank: usize, i: usize) -> f32 {
    ((7 * round + 3 * rank + i) % 11) as f32 * 0.01 - 0.05
}
