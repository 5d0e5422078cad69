//! Divide and shuffle: what its groups do to replicas, and that all trainers stop after the same
//! round.

use proptest::prelude::*;
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::{
    Action, BlockState, Blocks, Dealing, DivideShuffle, ModelAverage, SlowGroups, Spread,
};

use super::world::{Machine, World, intake};

fn dealing() -> impl Strategy<Value = Dealing<'static>> {
    prop_oneof![
        (1usize..6).prop_map(|columns| Dealing::Grid { columns }),
        (2usize..5).prop_map(|base| Dealing::Hypercube { base }),
        Just(Dealing::Ring),
        (1usize..6, any::<u64>()).prop_map(|(group, seed)| Dealing::Random { group, seed }),
    ]
}

/// What a trainer is lent.
struct Lent {
    staging: Vec<f32>,
    loaded: Vec<f32>,
    labels: Vec<usize>,
    sets: Vec<u64>,
    round: u64,
}

fn lent(trainers: usize, slice: usize) -> Vec<Lent> {
    let one = |_| Lent {
        staging: vec![f32::NAN; slice + TAIL],
        loaded: vec![f32::NAN; slice],
        labels: vec![0; trainers],
        sets: vec![0; Spread::words(trainers)],
        round: 0,
    };
    (0..trainers).map(one).collect()
}

fn shuffles<'a>(
    lent: &'a mut [Lent],
    (alpha, delta): (f32, bool),
    dealing: Dealing<'a>,
    replicas: &[Vec<f32>],
) -> World<'a> {
    let one = |it: &'a mut Lent| {
        let spread = Spread::new(dealing, &mut it.labels, &mut it.sets);
        let intake = intake(delta, &mut it.loaded);
        let machine = DivideShuffle::new(&mut it.staging, alpha, intake, spread, &mut it.round);
        Box::new(machine) as Box<dyn Machine>
    };
    World::dealt(lent.iter_mut().map(one).collect(), replicas, Some(dealing))
}

fn values(world: &World<'_>) -> Vec<Vec<f32>> {
    world.ranks.iter().map(|rank| rank.values()).collect()
}

/// Runs trainers that make `loads[rank]` rounds of their own in an order drawn with `seed`, until
/// nothing can happen any more. Returns how many reductions each joined.
fn play<'a>(mut world: World<'a>, loads: &[usize], seed: u64) -> (Vec<usize>, World<'a>) {
    let stream = Stream::new(seed, Purpose::Test(7));
    let mut made = vec![0; loads.len()];
    for draw in 0.. {
        let can: Vec<usize> = (0..loads.len())
            .filter(|&rank| match world.ranks[rank].outstanding {
                Action::ReduceMean { .. } => world.is_reduced(rank),
                Action::Finish => false,
                _ => true,
            })
            .collect();
        if can.is_empty() {
            break;
        }
        let rank = can[usize::try_from(stream.below(draw, can.len() as u64)).unwrap()];
        match world.ranks[rank].outstanding {
            Action::Load if made[rank] < loads[rank] => {
                made[rank] += 1;
                world.load(rank, made[rank] == loads[rank]);
            }
            Action::Load => world.stop(rank),
            Action::ReduceMean { .. } => drop(world.conclude(rank)),
            _ => world.act(rank),
        }
    }
    (world.ranks.iter().map(|it| it.joined).collect(), world)
}

proptest! {
    /// Whatever the order of events and however unequal the work: all trainers finish, after the
    /// same number of rounds, which is not before the last has ended its work, and no message is
    /// left. Trainers that never meet end by themselves.
    #[test]
    fn all_stop_after_the_same_round(
        dealing in dealing(),
        loads in prop::collection::vec(0usize..9, 1..12),
        seed in any::<u64>(),
    ) {
        let trainers = loads.len();
        let mut lent = lent(trainers, 1);
        let replicas: Vec<Vec<f32>> = (0..trainers).map(|rank| vec![rank as f32]).collect();
        let world = shuffles(&mut lent, (1.0, false), dealing, &replicas);
        let (joined, world) = play(world, &loads, seed);
        for rank in 0..trainers {
            let waits = world.ranks[rank].outstanding;
            prop_assert!(world.has_finished(rank), "{rank} waits: {waits:?}");
        }
        prop_assert!(world.is_quiet() || !dealing.meets(), "terms that nobody took");
        if dealing.meets() {
            let most = *loads.iter().max().unwrap();
            prop_assert!(joined.iter().all(|n| *n == joined[0] && *n >= most), "{joined:?}");
            // The news of the last one's end goes around, and that is all.
            prop_assert!(joined[0] <= most.max(1) + 64, "{joined:?}");
        } else {
            let own: Vec<usize> = loads.iter().map(|n| (*n).max(1)).collect();
            prop_assert_eq!(joined, own);
        }
    }

    /// Groups of all are model averaging, and groups of one are nothing, bit for bit.
    #[test]
    fn groups_of_all_and_of_one(
        (alpha, delta) in (0f32..=1.0, any::<bool>()),
        replicas in (1usize..6, 1usize..9).prop_flat_map(|(trainers, slice)| {
            prop::collection::vec(prop::collection::vec(-1e4f32..1e4, slice), trainers)
        }),
    ) {
        let trainers = replicas.len();
        let work = |it: &super::world::Rank<'_>, rank: usize| {
            it.train(|i, x| x * 1.01 + (rank + i) as f32);
        };
        let [one, all] = [1, trainers].map(|group| {
            let mut lent = lent(trainers, replicas[0].len());
            let dealing = Dealing::Random { group, seed: 3 };
            let mut world = shuffles(&mut lent, (alpha, delta), dealing, &replicas);
            (0..3).for_each(|_| world.round(&vec![false; trainers], work));
            values(&world)
        });
        let mut still = replicas.clone();
        for _ in 0..3 {
            for (rank, replica) in still.iter_mut().enumerate() {
                let moved = |i: usize, x: f32| x * 1.01 + (rank + i) as f32;
                replica.iter_mut().enumerate().for_each(|(i, x)| *x = moved(i, *x));
            }
        }
        prop_assert_eq!(&one, &still);
        let mut lent = lent(trainers, replicas[0].len());
        let averages = lent.iter_mut().map(|it| {
            let machine = ModelAverage::new(&mut it.staging, alpha, intake(delta, &mut it.loaded));
            Box::new(machine) as Box<dyn Machine>
        });
        let mut world = World::new(averages.collect(), &replicas);
        (0..3).for_each(|_| world.round(&vec![false; trainers], work));
        if trainers > 1 {
            prop_assert_eq!(all, values(&world));
        }
    }

    /// Without momentum, slow momentum in groups is averaging in groups, to the last bit; with it
    /// the velocities remember.
    #[test]
    fn slow_groups_without_momentum_are_groups(
        dealing in dealing(),
        (alpha, delta) in (0f32..=1.0, any::<bool>()),
        replicas in (1usize..6, 1usize..9).prop_flat_map(|(trainers, slice)| {
            prop::collection::vec(prop::collection::vec(-1e4f32..1e4, slice), trainers)
        }),
    ) {
        let trainers = replicas.len();
        let work = |it: &super::world::Rank<'_>, rank: usize| {
            it.train(|i, x| x * 1.01 + (rank + i) as f32);
        };
        let still = vec![false; trainers];
        let mut plain = lent(trainers, replicas[0].len());
        let mut world = shuffles(&mut plain, (alpha, delta), dealing, &replicas);
        (0..3).for_each(|_| world.round(&still, work));
        let expected = values(&world);
        for momentum in [0.0, 0.5] {
            let mut buffers = lent(trainers, replicas[0].len());
            let mut states: Vec<[Vec<f32>; 2]> =
                replicas.iter().map(|it| [it.clone(), vec![0.0; it.len()]]).collect();
            let machines = buffers.iter_mut().zip(&mut states).map(|(it, [global, velocity])| {
                let spread = Spread::new(dealing, &mut it.labels, &mut it.sets);
                let intake = intake(delta, &mut it.loaded);
                let state = BlockState { global, momentum: velocity };
                let blocks = Blocks { rate: 1.0, momentum, nesterov: false };
                let lent = (&mut it.staging[..], &mut it.round);
                let len = replicas[0].len();
                let machine = SlowGroups::new(lent, (alpha, intake), spread, blocks, state, len);
                Box::new(machine) as Box<dyn Machine>
            });
            let mut world = World::dealt(machines.collect(), &replicas, Some(dealing));
            (0..3).for_each(|_| world.round(&still, work));
            if momentum == 0.0 {
                prop_assert_eq!(&values(&world), &expected);
            }
            drop(world);
            let remembers = states.iter().flat_map(|it| &it[1]).any(|x| *x != 0.0);
            prop_assert!(remembers || trainers == 1 || !dealing.meets() || momentum == 0.0);
        }
    }

    /// A replica that is not finite says nothing in its group and becomes its mean; where the whole
    /// group has none, nothing changes.
    #[test]
    fn who_is_not_finite_becomes_the_groups_mean(out in prop::collection::vec(any::<bool>(), 4)) {
        let replicas =
            out.iter().zip(1u8..).map(|(out, x)| if *out { f32::NAN } else { x.into() });
        let replicas: Vec<Vec<f32>> = replicas.map(|x| vec![x]).collect();
        let mut lent = lent(4, 1);
        let mut world = shuffles(&mut lent, (1.0, false), Dealing::Grid { columns: 2 }, &replicas);
        world.round(&[false; 4], |_, _| {});
        let values = values(&world);
        for (pair, first) in [(0, 1.0), (2, 3.0)] {
            let expected = match (out[pair], out[pair + 1]) {
                (false, false) => first + 0.5,
                (false, true) => first,
                (true, false) => first + 1.0,
                (true, true) => f32::NAN,
            };
            for rank in [pair, pair + 1] {
                prop_assert_eq!(values[rank][0].to_bits(), expected.to_bits(), "{:?}", values);
            }
        }
    }
}
