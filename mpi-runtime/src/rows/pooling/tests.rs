//! A rank that pools, and what it refuses.
#![allow(clippy::unwrap_used)]

use crossbeam_channel::{Receiver, unbounded};

use super::*;
use crate::rows::bag_wire::{BagList, write_bag_push};
use crate::rows::router::{Errand, Pool, Router};

const WIDTH: usize = 2;

type Link = Receiver<(usize, Vec<u32>)>;

/// Rank 1 with partitions 1 and 3 of four, asked by rank 0; what its partitions are told, and
/// what goes out.
fn rank() -> (Router, [Receiver<Errand>; 2], Link) {
    let (one, first) = unbounded();
    let (three, second) = unbounded();
    let (link, out) = unbounded();
    let rules = PoolRules {
        partitioning: Partitioning { partitions: 4 },
        width: WIDTH,
        fields: 2,
        always: 0,
        coding: Coding::ALL,
    };
    let router = Router {
        rank: 1,
        width: WIDTH,
        value_words: WIDTH,
        partitions: vec![(1, one), (3, three)],
        row_ends: vec![100, 100],
        workers: vec![],
        first_worker: 0,
        links: vec![link],
        pool: Pool::new(4),
        pooling: Some(Pooling::new(rules, 1)),
    };
    (router, [first, second], out)
}

const fn header(kind: Kind) -> Header {
    Header { kind, clock: 4, asker: Asker::Worker(7) }
}

/// Bag 2 has rows 5 and 7, bag 3 row 9.
fn lookup() -> Vec<u32> {
    let mut list = BagList::default();
    list.rows.extend([5, 7]);
    list.add(2, 2);
    list.rows.push(9);
    list.add(3, 1);
    let mut words = vec![];
    header(Kind::BagLookup).write(&mut words);
    list.write(&mut words, 7);
    words
}

fn push(worker: u32, values: usize, of_a_value: u32) -> Vec<u32> {
    let mut words = vec![];
    header(Kind::BagPush).write(&mut words);
    let bytes: Vec<u8> = (0..values).flat_map(|i| (i as f32).to_le_bytes()).collect();
    write_bag_push(&mut words, (worker, 0.5), &bytes, of_a_value);
    words
}

fn bundle(errands: &Receiver<Errand>) -> Arc<Bundle> {
    let Ok(Errand::Serve(bundle)) = errands.try_recv() else { panic!("no request") };
    bundle
}

/// Answers the lookup with sums of partition 1 and 3 that the test makes up.
fn answer(router: &Router, errands: &[Receiver<Errand>; 2]) {
    router.deliver(0, lookup()).unwrap();
    // Whoever comes first.
    for (partition, at) in [(3, 1), (1, 0)] {
        let mut sums = vec![0; HEADER_LEN];
        sums.extend([1.0, 2.0, 3.0, partition as f32].map(f32::to_bits));
        router.finish(bundle(&errands[at]), partition, Some(sums));
    }
}

#[test]
fn sums_of_partitions_are_added_up_and_gradients_become_a_push() {
    let (router, errands, out) = rank();
    answer(&router, &errands);
    let (to, words) = out.try_recv().unwrap();
    assert_eq!((to, Header::read(&words).unwrap().kind), (0, Kind::Pooled));
    let mut vectors = [0.0; 2 * WIDTH];
    let own = byte_sections(&words, Kind::Pooled).next().unwrap();
    umbra_core::compress::add(own.bytes, &mut vectors).unwrap();
    assert_eq!((own.worker, vectors), (7, [2.0, 4.0, 6.0, 4.0]));
    router.deliver(0, push(7, 4, 4)).unwrap();
    let pooling = router.pooling.as_ref().unwrap();
    let mut scratch = PoolScratch::default();
    for (partition, at, expected) in
        [(1, 0, &[(5, [0.0, 1.0]), (9, [2.0, 3.0])][..]), (3, 1, &[(7, [0.0, 1.0])])]
    {
        let words = pooling.push_of(&bundle(&errands[at]), partition, &mut scratch, vec![]);
        let sections = crate::rows::wire::sections(&words, Kind::Push, WIDTH);
        assert!(sections.whole());
        for section in sections {
            assert_eq!((section.partition, section.worker, section.rate), (partition, 7, 0.5));
            let gradients: &[f32] = bytemuck::cast_slice(&words[section.at..]);
            let rows = section.rows.iter().zip(gradients.chunks(WIDTH));
            let rows: Vec<_> = rows.map(|(row, g)| (*row, [g[0], g[1]])).collect();
            assert_eq!(rows, expected);
        }
    }
    let ledger = pooling.ledger();
    assert_eq!((ledger.kept, ledger.elements), (4, 4));
    assert_eq!(ledger.bytes, ledger.bytes_plain);
    assert!(pooling.answered.lock().unwrap().is_empty());
}

/// Whatever comes over a link is looked at before it is believed.
#[test]
fn gradients_of_other_vectors_are_refused() {
    let unknown = Stray::Unknown { from: 0 };
    let refused = |words: Vec<u32>, answered: bool| {
        let (router, errands, _out) = rank();
        if answered {
            answer(&router, &errands);
        }
        let refused = router.deliver(0, words).unwrap_err();
        assert!(errands.iter().all(Receiver::is_empty));
        refused
    };
    assert_eq!(refused(push(7, 4, 4), false), unknown, "no bags were asked for");
    assert_eq!(refused(push(6, 4, 4), true), unknown, "of another worker");
    assert_eq!(refused(push(7, 3, 4), true), unknown, "too few");
    assert_eq!(refused(push(7, 4, 2), true), unknown, "of another length");
    assert_eq!(refused(push(7, 4, 3), true), unknown, "of no length");
    let mut cut = push(7, 4, 4);
    cut.pop();
    assert_eq!(refused(cut, true), unknown);
    let mut elsewhere = lookup();
    let at = elsewhere.len() - 1;
    elsewhere[at] = 8;
    assert_eq!(refused(elsewhere, false), Stray::Partition { from: 0, partition: 0 });
    let (mut router, ..) = rank();
    router.pooling = None;
    assert_eq!(router.deliver(0, lookup()), Err(unknown), "rows are sent here");
    // Without gradients a lookup is done with.
    let (router, errands, _out) = rank();
    answer(&router, &errands);
    let mut empty = vec![];
    header(Kind::BagPush).write(&mut empty);
    router.deliver(0, empty).unwrap();
    assert!(router.pooling.as_ref().unwrap().answered.lock().unwrap().is_empty());
}
