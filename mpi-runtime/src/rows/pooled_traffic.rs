//! What pooled bags take on the wire: counted in batches, and from that what a rank sends, receives
//! and holds in a step.
//!
//! A lookup's section is written as it would be sent (`bags.rs`), so its length is no estimate. How
//! many elements pass a threshold is: as many as `compress.mp_keep` says, of those that have one.
//! Between two ranks there are as many messages as of rows (`traffic.rs`).

use umbra_core::compress::{len_max, len_of};

use crate::rows::bag_wire::{BAG_PUSH_SECTION_LEN, POOLED_SECTION_LEN};
use crate::rows::bags::Bags;
use crate::rows::pooling::PoolRules;
use crate::rows::traffic::{Pair, Sections, Shape, Steps};

/// Bags of workers' steps, counted.
pub struct BagCounts {
    rules: PoolRules,
    steps: u64,
    /// Bags with values.
    vectors: u64,
    /// By the ranks that hold rows.
    servers: Vec<Count>,
    /// A section.
    words: Vec<u32>,
}

/// What a rank that holds rows has of them, over all steps.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Steps that have a bag there.
    touched: u64,
    /// Bags there.
    bags: u64,
    /// Words of sections.
    lookup: u64,
    answer: u64,
    push: u64,
}

impl BagCounts {
    /// Of no step so far.
    #[must_use]
    pub fn new(rules: PoolRules, servers: usize) -> Self {
        let servers = vec![Count::default(); servers];
        Self { rules, steps: 0, vectors: 0, servers, words: vec![] }
    }

    /// Counts a worker's step: the bags of its batch, dealt to the ranks that hold rows; `vectors`
    /// of them have values.
    pub fn add(&mut self, bags: &Bags, vectors: usize) {
        self.steps += 1;
        self.vectors += vectors as u64;
        for (server, count) in self.servers.iter_mut().enumerate() {
            let here = bags.at(server);
            if here == 0 {
                continue;
            }
            self.words.clear();
            bags.write_lookup(&mut self.words, server, 0);
            let (answer, push) = bytes_of_vectors(&self.rules, here as usize);
            count.touched += 1;
            count.bags += u64::from(here);
            count.lookup += self.words.len() as u64;
            count.answer += (POOLED_SECTION_LEN + answer.div_ceil(4)) as u64;
            count.push += (BAG_PUSH_SECTION_LEN + push.div_ceil(4)) as u64;
        }
    }

    fn mean(&self, sum: u64) -> f64 {
        sum as f64 / self.steps.max(1) as f64
    }
}

/// Bytes of so many vectors, coded, and of their gradients: as many at most as pass if the share
/// that is to be kept does.
fn bytes_of_vectors(rules: &PoolRules, vectors: usize) -> (usize, usize) {
    let PoolRules { width, always, coding, .. } = *rules;
    let (elements, values) = (vectors * width, coding.values);
    let always = vectors * always.min(width);
    let passing = f64::from(coding.keep.share.min(1.0)) * (elements - always) as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    let kept = always + passing.ceil() as usize;
    let answer = len_of(kept, elements, values);
    // Many pass, and then all are sent.
    let kept = if answer == len_max(elements, values) { elements } else { kept };
    (answer, kept * values.bytes())
}

impl Shape {
    /// Its steps where those who hold rows pool. `rows` as in [`Shape::steps`]: gradients become
    /// those of rows before they are applied.
    ///
    /// # Panics
    /// When they are of another number of servers.
    #[must_use]
    pub fn pooled_steps(self, rows: &[f64], counts: &BagCounts) -> Steps {
        assert_eq!(rows.len(), self.servers, "rows of every server");
        assert_eq!(counts.servers.len(), self.servers, "bags of every server");
        let workers = self.workers as f64;
        let pair = |(count, rows): (&Count, &f64)| {
            let touched = counts.mean(count.touched);
            // Nobody of those who share a message has a bag there.
            let none = (1.0 - touched).powf(workers / self.messages());
            let words = |sum: u64| workers * counts.mean(sum);
            let [lookup, answer, push] = [count.lookup, count.answer, count.push].map(words);
            let pair = self.pair_of(1.0 - none, &Sections { lookup, answer, push });
            // The lookup waits for its gradients, with a bit for each element.
            let masks = words(count.bags) * self.width as f64 / 8.0;
            let kept_bytes =
                pair.kept_bytes + pair.lookup.bytes + masks + self.pair(*rows).push.bytes;
            Pair { kept_bytes, ..pair }
        };
        let pairs: Vec<Pair> = counts.servers.iter().zip(rows).map(pair).collect();
        let answers: f64 = pairs.iter().map(|pair| pair.answer.bytes).sum();
        let vectors = 4.0 * workers * counts.mean(counts.vectors) * self.width as f64;
        Steps::new(self, pairs, vectors + answers)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use umbra_core::batch::Jagged;
    use umbra_core::compress::{Coding, Keep, Mask, Values, code, mask_len};
    use umbra_core::model::Pooling;
    use umbra_core::sparse::{Numbering, Numbers, Partitioning};

    use super::*;
    use crate::rows::bag_wire::write_pooled;
    use crate::rows::bags::{BagScratch, Places};
    use crate::rows::traffic::{Duties, Flow};
    use crate::rows::wire::{Asker, HEADER_LEN, Header, Kind};

    const WIDTH: usize = 5;
    const SERVERS: usize = 2;
    const WORKERS: u32 = 3;
    const TRAINER: Duties = Duties { trains: true, serves: None, near: None };

    /// How vectors travel, and what becomes of bags.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        coding: Coding,
        always: usize,
        pooling: Pooling,
        weighted: bool,
        examples: u32,
        /// Most values of a bag.
        most: u32,
    }

    const fn keep(share: f32, values: Values) -> Coding {
        Coding { keep: Keep { share, refresh_every: 9 }, values }
    }

    const PLAIN: Case = Case {
        coding: Coding::ALL,
        always: 0,
        pooling: Pooling::Sum,
        weighted: false,
        examples: 40,
        most: 9,
    };

    fn rules(case: Case) -> PoolRules {
        let partitioning = Partitioning { partitions: 4 };
        let Case { coding, always, .. } = case;
        PoolRules { partitioning, width: WIDTH, fields: 2, always, coding }
    }

    /// A worker's bags, some of them empty, dealt; and how many have values.
    fn dealt(case: Case, worker: u32) -> (Bags, usize) {
        let (mut values, mut weights, mut offsets) = (vec![], vec![], vec![0]);
        let mut state = worker + 1;
        let mut below = |bound: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % bound
        };
        for _ in 0..2 * case.examples {
            for _ in 0..below(case.most + 1) {
                values.push(below(300));
                weights.push(0.5);
            }
            offsets.push(u32::try_from(values.len()).unwrap());
        }
        if !case.weighted {
            weights.clear();
        }
        let jagged = Jagged { values: &values, offsets: &offsets, weights: &weights };
        let tables = [0, 300].map(|first| Numbers { first, step: 1, rows: 300, shared: false });
        let places = Places {
            numbering: Numbering::new(&tables),
            partitioning: rules(case).partitioning,
            destination: &[0, 1, 0, 1],
            destinations: SERVERS,
        };
        let mut bags = Bags::default();
        let vectors = bags.deal(jagged, case.pooling, &places);
        (bags, vectors)
    }

    /// The vectors of a rank's answer: the first columns are there, and of the others the share
    /// that is to be kept.
    fn answered(case: Case, vectors: usize) -> Vec<f32> {
        let elements = vectors * WIDTH;
        let share = f64::from(case.coding.keep.share);
        let mut left = share * (elements - vectors * case.always) as f64;
        let of = |at: usize| {
            let there = at % WIDTH < case.always || left > 0.0;
            left -= f64::from(u8::from(there && at % WIDTH >= case.always));
            if there { 1.0 } else { 0.0 }
        };
        (0..elements).map(of).collect()
    }

    /// Messages that a trainer really sends and receives while each of its workers makes a step.
    fn messages(case: Case, joint: bool) -> [Flow; 2] {
        let mut workers: Vec<_> = (0..WORKERS).map(|worker| dealt(case, worker)).collect();
        let (mut sent, mut received) = (Flow::default(), Flow::default());
        let count = |flow: &mut Flow, words: &[u32]| {
            *flow = flow.plus(Flow { messages: 1.0, bytes: 4.0 * words.len() as f64 });
        };
        let message = |kind| {
            let mut words = vec![];
            Header { kind, clock: 1, asker: Asker::All }.write(&mut words);
            words
        };
        let groups = if joint { WORKERS as usize } else { 1 };
        for (first, group) in (0u32..).step_by(groups).zip(workers.chunks_mut(groups)) {
            for to in 0..SERVERS {
                let mut lookup = message(Kind::BagLookup);
                let mut answer = message(Kind::Pooled);
                for (worker, (bags, _)) in (first..).zip(&*group) {
                    bags.write_lookup(&mut lookup, to, worker);
                    let vectors = answered(case, bags.at(to) as usize);
                    let mut mask = vec![0; mask_len(vectors.len())];
                    let mask = Mask::nonzero(&vectors, &mut mask);
                    let mut bytes = vec![0; len_max(vectors.len(), case.coding.values)];
                    let length = code(&vectors, &mask, case.coding.values, &mut bytes);
                    if bags.at(to) > 0 {
                        write_pooled(&mut answer, worker, &bytes[..length]);
                    }
                }
                if lookup.len() > HEADER_LEN {
                    count(&mut sent, &lookup);
                    count(&mut received, &answer);
                }
                let answer = Arc::new(answer);
                group.iter_mut().for_each(|(bags, _)| bags.came(to, Arc::clone(&answer)));
            }
            let mut scratch = BagScratch::default();
            for (worker, (bags, vectors)) in (first..).zip(&mut *group) {
                let mut sums = vec![0.0; *vectors * WIDTH];
                bags.add_up(&mut sums, WIDTH, worker, &mut scratch, drop).unwrap();
            }
            for to in 0..SERVERS {
                let mut push = message(Kind::BagPush);
                for (worker, (bags, vectors)) in (first..).zip(&*group) {
                    let gradients = vec![1.0; vectors * WIDTH];
                    let (own, values) = ((worker, 0.5), case.coding.values);
                    let gradients = (&*gradients, WIDTH);
                    bags.write_push(&mut push, to, own, gradients, values, &mut scratch);
                }
                if joint || push.len() > HEADER_LEN {
                    count(&mut sent, &push);
                    count(&mut received, &message(Kind::Ack));
                }
            }
        }
        [sent, received]
    }

    fn shape(joint: bool) -> Shape {
        Shape {
            trainers: 1,
            servers: SERVERS,
            workers: WORKERS as usize,
            partitions: 2,
            joint,
            width: WIDTH,
            value_words: WIDTH,
            permits: 3,
        }
    }

    fn counted(case: Case) -> BagCounts {
        let mut counts = BagCounts::new(rules(case), SERVERS);
        for worker in 0..WORKERS {
            let (bags, vectors) = dealt(case, worker);
            counts.add(&bags, vectors);
        }
        counts
    }

    /// All that differs between steps is what they have of bags: of those that were counted bytes
    /// and messages are what is sent, exactly.
    #[test]
    fn what_is_counted_is_what_is_sent() {
        let some = Case { coding: keep(0.25, Values::Bf16), always: 1, ..PLAIN };
        for case in [
            PLAIN,
            Case { pooling: Pooling::Mean, ..PLAIN },
            Case { weighted: true, ..PLAIN },
            Case { weighted: true, pooling: Pooling::Mean, most: 300, ..PLAIN },
            // One bag or two in a batch, and often none on a rank.
            Case { examples: 1, most: 1, ..PLAIN },
            some,
            Case { coding: keep(0.3, Values::F32), ..some },
            // So many that all are sent.
            Case { coding: keep(0.97, Values::Bf16), ..some },
            Case { coding: keep(1.0, Values::Bf16), ..some },
        ] {
            for joint in [true, false] {
                let what = format!("{case:?}, joint: {joint}");
                let step = shape(joint).pooled_steps(&[1.0; SERVERS], &counted(case)).of(&TRAINER);
                let expected = [step.sent, step.received];
                for (found, expected) in messages(case, joint).into_iter().zip(expected) {
                    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
                    let few = case.examples == 1 && joint;
                    assert!(few || near(expected.messages, found.messages), "{what}: {found:?}");
                    assert!(few || near(expected.bytes, found.bytes), "{what}: {expected:?}");
                }
            }
        }
    }

    /// Where few pass, indices are as long as `len_of` says at most.
    #[test]
    fn few_elements_are_no_more_bytes_than_expected() {
        let case = Case { coding: keep(0.02, Values::Bf16), examples: 400, ..PLAIN };
        let step = shape(true).pooled_steps(&[1.0; SERVERS], &counted(case)).of(&TRAINER);
        let [sent, received] = messages(case, true);
        assert_eq!(sent, step.sent);
        let (found, expected) = (received.bytes, step.received.bytes);
        assert!(found <= expected && expected < 1.2 * found, "{found} of {expected}");
    }

    #[test]
    fn a_message_of_all_workers_is_there_if_anybody_has_a_bag() {
        let case = Case { examples: 1, most: 1, ..PLAIN };
        let counts = counted(case);
        let touched: Vec<f64> = counts.servers.iter().map(|it| it.touched as f64 / 3.0).collect();
        assert!(touched.iter().any(|share| (0.1..0.9).contains(share)), "{touched:?}");
        let lookups = |joint: bool| {
            let pushes = if joint { SERVERS as f64 } else { 0.0 };
            let step = shape(joint).pooled_steps(&[1.0; SERVERS], &counts).of(&TRAINER);
            step.sent.messages - pushes
        };
        let any: f64 = touched.iter().map(|share| 1.0 - (1.0 - share).powi(3)).sum();
        assert!((lookups(true) - any).abs() < 1e-9);
        // A lookup and a push of each worker.
        let each: f64 = touched.iter().map(|share| 2.0 * 3.0 * share).sum();
        assert!((lookups(false) - each).abs() < 1e-9);
    }

    /// Vectors of bags on two ranks: what comes is the parts, what a worker has is the sums too.
    #[test]
    fn a_rank_holds_what_it_has_of_steps_under_way() {
        let (counts, rows) = (counted(PLAIN), [7.0, 8.0]);
        let steps = shape(true).pooled_steps(&rows, &counts);
        let held = |duties: Duties| steps.of(&duties).held_bytes;
        let acks = SERVERS as f64 * 4.0 * HEADER_LEN as f64;
        let vectors = 4.0 * counts.vectors as f64 * WIDTH as f64;
        let own = vectors + steps.of(&TRAINER).received.bytes - acks;
        assert!((held(TRAINER) - 3.0 * own).abs() < 1e-6);
        let server = |number| Duties { trains: false, serves: Some(number), near: None };
        let of_rows = |number| shape(true).steps(&rows).of(&server(number)).held_bytes;
        for number in 0..SERVERS {
            let masks = counts.servers[number].bags as f64 * WIDTH as f64 / 8.0;
            let expected = steps.of(&server(number)).received.bytes + masks;
            assert!((held(server(number)) - 3.0 * expected - of_rows(number)).abs() < 1e-6);
        }
    }
}
