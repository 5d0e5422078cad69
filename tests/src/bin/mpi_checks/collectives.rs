//! The collectives of `comm.rs`, and sums in a fixed order.

use std::io::Write;
use std::sync::Arc;

use umbra_core::rng::{Purpose, Stream};
use umbra_mpi::comm::reduce::{MANY, PIECE, Sums, combine, plan};
use umbra_mpi::comm::traffic::{Traffic, process_traffic};
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::comm::{Comm, Mailbox};
use umbra_mpi::launch::world::World;
use umbra_tests::tree_sum;

/// What rank `from` sends to rank `to`: some pairs get nothing, none gets as much as another.
fn list(from: usize, to: usize, size: usize) -> Vec<u64> {
    let length = if (from + 2 * to).is_multiple_of(3) { 0 } else { 100 * from + 7 * to + 1 };
    (0..length).map(|i| ((from * size + to) * 10_000 + i) as u64).collect()
}

pub(super) fn all_gather(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (control.rank() as u64, control.size());
    let mut received = vec![0; 3 * size];
    control.all_gather(&[rank, rank * rank, 7], &mut received, "test").unwrap();
    let expected: Vec<u64> = (0..size as u64).flat_map(|r| [r, r * r, 7]).collect();
    assert_eq!(received, expected);
    let mut nothing: Vec<f32> = vec![];
    control.all_gather::<f32>(&[], &mut nothing, "test").unwrap();
}

pub(super) fn all_gather_varied(_: &World, _: &Arc<Watch>, control: &Comm) {
    let size = control.size();
    // Rank 0 has nothing to say.
    let own = |rank: usize| (0..rank * 1000).map(|i| (rank + i) as f32).collect::<Vec<_>>();
    let received = control.all_gather_varied(&own(control.rank()), "test").unwrap();
    assert_eq!(received, (0..size).map(own).collect::<Vec<_>>());
    // Bytes: an empty slice of them has the address that MPI_IN_PLACE has in Open MPI.
    let own = |rank: usize| (1..=rank as u8).collect::<Vec<_>>();
    let received = control.all_gather_varied(&own(control.rank()), "test").unwrap();
    assert_eq!(received, (0..size).map(own).collect::<Vec<_>>());
    let nothing = control.all_gather_varied::<u8>(&[], "test").unwrap();
    assert_eq!(nothing, vec![Vec::<u8>::new(); size]);
}

pub(super) fn exchange(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (control.rank(), control.size());
    let lists: Vec<Vec<u64>> = (0..size).map(|to| list(rank, to, size)).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let received = control.exchange(&lists, "test").unwrap();
    let expected: Vec<Vec<u64>> = (0..size).map(|from| list(from, rank, size)).collect();
    assert_eq!(received, expected);
    // Everything to the last rank.
    let (mine, nothing) = ([rank as u64], &[][..]);
    let mut lists = vec![nothing; size];
    lists[size - 1] = &mine;
    let received = control.exchange(&lists, "test").unwrap().concat();
    let expected = if rank == size - 1 { (0..size as u64).collect() } else { vec![] };
    assert_eq!(received, expected);
}

pub(super) fn all_to_all_varied(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (control.rank(), control.size());
    let sent: Vec<Vec<u64>> = (0..size).map(|to| list(rank, to, size)).collect();
    let expected: Vec<Vec<u64>> = (0..size).map(|from| list(from, rank, size)).collect();
    let lengths = |lists: &[Vec<u64>]| lists.iter().map(Vec::len).collect::<Vec<_>>();
    let (send_counts, receive_counts) = (lengths(&sent), lengths(&expected));
    let received =
        control.all_to_all_varied(sent.concat(), &send_counts, &receive_counts, "test").unwrap();
    assert_eq!(received, expected.concat());
}

pub(super) fn all_gather_stretches(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (control.rank(), control.size());
    for odd in [0, 1] {
        let counts: Vec<usize> = (0..size).map(|r| if r % 2 == odd { 0 } else { r + 5 }).collect();
        let own = |r: usize| (0..counts[r]).map(|i| (100 * r + i) as f32).collect::<Vec<_>>();
        let mut received = vec![0.0; counts.iter().sum()];
        control.all_gather_stretches(&own(rank), &mut received, &counts, "test").unwrap();
        assert_eq!(received, (0..size).flat_map(own).collect::<Vec<_>>());
    }
}

/// Nobody leaves before everybody has come: files say who has come.
pub(super) fn barrier(world: &World, _: &Arc<Watch>, control: &Comm) {
    let folder = std::env::current_dir().unwrap();
    for round in 0..20 {
        let came = |rank: usize| folder.join(format!("came-{round}-{rank}"));
        // Another rank is last in every round.
        if round % world.size == world.rank {
            std::thread::sleep(core::time::Duration::from_millis(5));
        }
        std::fs::write(came(world.rank), "").unwrap();
        control.barrier("test", round % 2 == 0).unwrap();
        for rank in 0..world.size {
            assert!(came(rank).exists(), "round {round}: rank {rank} had not come");
        }
    }
}

pub(super) fn subset(world: &World, watch: &Arc<Watch>, _: &Comm) {
    let (rank, size) = (world.rank, world.size);
    let all = world.communicator(watch).unwrap();
    let members: Vec<usize> = (1..size).collect();
    let last = all.subset(&members).unwrap();
    assert_eq!(last.is_some(), rank >= 1);
    if let Some(last) = last {
        assert_eq!((last.rank(), last.size()), (rank - 1, size - 1));
        let mut seen = vec![0; size - 1];
        last.all_gather(&[rank as u64], &mut seen, "test").unwrap();
        assert_eq!(seen, (1..size as u64).collect::<Vec<_>>());
        last.barrier("test", false).unwrap();
    }
    // A communicator made after does not mix with one made before.
    let members: Vec<usize> = (0..size).collect();
    assert_eq!(
        all.subset(&members).unwrap().map(|all| (all.rank(), all.size())),
        Some((rank, size))
    );
}

/// Sums are trees over the ranks, equal to a tree by hand bit for bit, and so on every rank.
pub(super) fn reduce(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (control.rank(), control.size());
    let mut sums = Sums::default();
    // Stretches that are exchanged whole, halved ones, a piece, one element more, several pieces.
    let piece = plan::<f32>(size, 0).piece();
    assert_eq!(piece, 2 * PIECE / 4);
    let mut sequential_differs = 0;
    let short = [0, 1, size - 1, size, size + 1, 7, 1001, 2049].map(|length| (length, 2));
    // More ranks than are usual on one machine take a while.
    let (long, ways): (&[usize], &[usize]) = match size {
        // More pieces than there are tags for at a time.
        2 => (&[piece, 66 * piece + 1], &[1, MANY]),
        ..=4 => (&[piece, piece + 1, 5 * piece / 2, 9 * piece], &[1, 4, MANY]),
        _ => (&[piece + 1], &[2]),
    };
    let long = long.iter().flat_map(|length| ways.iter().map(|under_way| (*length, *under_way)));
    for (length, under_way) in short.into_iter().chain(long) {
        // Magnitudes over ten decades: the order of adding shows.
        let of = |rank: usize, i: usize| {
            let stream = Stream::new(length as u64, Purpose::Test(rank as u32));
            let i = i as u64;
            stream.normal(i) * 10f32.powi(stream.below(1 << 32 | i, 10) as i32)
        };
        let mut values: Vec<f32> = (0..length).map(|i| of(rank, i)).collect();
        let few_of = |rank: usize, i: usize| f64::from(of(rank, i)).exp2();
        let mut few: Vec<f64> = (0..length.min(100)).map(|i| few_of(rank, i)).collect();
        let before = control.traffic();
        let sent = sums.sum_with_few(control, &mut values, &mut few, under_way, "test").unwrap();
        let planned = [plan::<f32>(size, length), plan::<f64>(size, few.len())];
        let planned = planned.map(|plan| plan.sends(rank));
        assert_eq!(sent.messages, planned[0].messages + planned[1].messages);
        assert_eq!(sent.bytes, planned[0].bytes + planned[1].bytes);
        let counted = control.traffic().since(before);
        assert_eq!(counted.bytes_sent, sent.bytes, "{length}");
        for (i, value) in values.iter().enumerate() {
            let parts: Vec<f32> = (0..size).map(|rank| of(rank, i)).collect();
            assert_eq!(value.to_bits(), tree_sum(&parts).to_bits(), "f32 {i} of {length}");
            sequential_differs += usize::from(*value != parts.iter().sum::<f32>());
        }
        for (i, value) in few.iter().enumerate() {
            let parts: Vec<f64> = (0..size).map(|rank| few_of(rank, i)).collect();
            assert_eq!(value.to_bits(), tree_sum(&parts).to_bits(), "f64 {i} of {length}");
        }
        let of_values = values.iter().map(|value| u64::from(value.to_bits()));
        let bits: Vec<u64> = of_values.chain(few.iter().map(|value| value.to_bits())).collect();
        assert!(
            control.all_gather_varied(&bits, "test").unwrap().iter().all(|other| *other == bits)
        );
    }
    // With three ranks or less a tree is a sequence.
    assert!(size < 4 || sequential_differs > 0, "these values cannot tell a tree from a sequence");
}

/// Anything is combined in the order of ranks, in pieces, with what is not commutative too.
pub(super) fn combined(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (control.rank() as u64, control.size() as u64);
    for length in [0, 1, 5, 20_000] {
        let mut counts: Vec<u64> = (0..length).map(|i| i * 1000 + rank).collect();
        let add = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
        combine(control, &mut counts, add, "test").unwrap();
        let ranks = size * (size - 1) / 2;
        assert!(
            counts.iter().zip(0..).all(|(count, i): (_, u64)| *count == i * 1000 * size + ranks)
        );
        // The first of all: rank 0's.
        let mut first: Vec<u64> = (0..length).map(|i| i + rank).collect();
        combine(control, &mut first, |_, _| (), "test").unwrap();
        assert_eq!(first, (0..length).collect::<Vec<_>>());
    }
    // What joins its terms as digits shows their order.
    let join = |to: &mut [u128], from: &[u128]| {
        let digits = if from[0] == 0 { 1 } else { from[0].ilog(16) + 1 };
        to[0] = (to[0] << (4 * digits)) | from[0];
    };
    let mut joined = [u128::from(rank) + 1];
    combine(control, &mut joined, join, "test").unwrap();
    assert_eq!(joined[0], (0..size).fold(0, |sum, rank| sum << 4 | u128::from(rank + 1)));
}

/// A rank that does not come is an error of those that waited, who live on; their buffers are left
/// to the library, which may use them when the rank comes after all.
pub(super) fn lost(world: &World, watch: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (world.rank, world.size);
    let all = world.communicator(watch).unwrap();
    let limit = watch.limit();
    if rank > 0 {
        watch.set_limit(core::time::Duration::ZERO);
        let mut received = vec![7u64; size];
        let lost =
            all.all_gather(&[rank as u64], &mut received, "a rank that is late").unwrap_err();
        assert_eq!(received, vec![7; size], "not touched");
        let said = lost.to_string();
        let end =
            format!(" s for a rank that is late of {size} ranks and gave up (run.watchdog_s = 0)");
        assert!(said.starts_with("waited ") && said.ends_with(&end), "{said}");
        watch.set_limit(limit);
        control.barrier("all but one have given up", false).unwrap();
    } else {
        control.barrier("all but one have given up", false).unwrap();
        let mut received = vec![0; size];
        all.all_gather(&[0], &mut received, "those that gave up").unwrap();
        assert_eq!(received, (0..size as u64).collect::<Vec<_>>());
    }
    control.barrier("the end", false).unwrap();
    // It has an operation under way for ever.
    core::mem::forget(all);
}

/// What is counted is what the calls are documented to send.
pub(super) fn traffic(world: &World, watch: &Arc<Watch>, _: &Comm) {
    let (rank, size) = (world.rank, world.size);
    let comm = world.communicator(watch).unwrap();
    let others = size as u64 - 1;
    let (before, mut counted) = (process_traffic(), Traffic::default());
    let mut check = |comm: &Comm, what: &str, sent: [u64; 2], received: [u64; 2]| {
        let [messages_sent, bytes_sent] = sent;
        let [messages_received, bytes_received] = received;
        let expected = Traffic { messages_sent, bytes_sent, messages_received, bytes_received };
        assert_eq!(comm.traffic().since(counted), expected, "{what}");
        counted = comm.traffic();
    };
    check(&comm, "a new one", [0; 2], [0; 2]);
    comm.barrier("test", false).unwrap();
    let rounds = [0, 1, 2, 2][size - 1];
    check(&comm, "a barrier", [rounds, 0], [rounds, 0]);
    comm.all_gather(&[1u64, 2, 3], &mut vec![0; 3 * size], "test").unwrap();
    check(&comm, "an all-gather", [others, 24 * others], [others, 24 * others]);
    // Of lengths that depend on the sender, first told to all; the first rank has nothing.
    comm.all_gather_varied(&vec![0u8; 10 * rank], "test").unwrap();
    let told = [others, 8 * others];
    let sent = if rank == 0 { [0; 2] } else { [others, 10 * rank as u64 * others] };
    let all: u64 = (0..size as u64).map(|rank| 10 * rank).sum();
    let from = others - u64::from(rank > 0);
    check(
        &comm,
        "one of different lengths",
        [told[0] + sent[0], told[1] + sent[1]],
        [told[0] + from, told[1] + all - 10 * rank as u64],
    );
    comm.broadcast(&mut [0u64; 5], "test", false).unwrap();
    let (told, heard) = if rank == 0 { ([others, 40 * others], [0; 2]) } else { ([0; 2], [1, 40]) };
    check(&comm, "a broadcast", told, heard);
    // A piece is its length and its bytes.
    if rank == 0 {
        (1..size).for_each(|from| comm.hear(from, "test", |_| ()).unwrap());
        check(&comm, "what others say", [0; 2], [others, 104 * others]);
    } else {
        let mut first = comm.tell_first("test");
        first.write_all(&[0; 100]).unwrap();
        first.finish().unwrap();
        check(&comm, "what is said to the first", [1, 104], [0; 2]);
    }
    let mut mailbox = Mailbox::new(comm);
    (0..size).for_each(|to| mailbox.send(to, vec![0; 1000]));
    for _ in 0..size {
        while mailbox.receive().is_none() {
            std::thread::yield_now();
        }
    }
    check(mailbox.comm(), "messages", [others, 4000 * others], [others, 4000 * others]);
    assert_eq!(process_traffic().since(before), mailbox.comm().traffic());
}
