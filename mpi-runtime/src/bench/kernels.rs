//! The parts of a step one by one, each beside the peak of the core.
//!
//! Products, interaction and their gradients run in the tiles of examples that a step uses; rows go
//! through a worker's own client; dense parameters are updated all at once, where a step may do it
//! layer by layer. Everything is repeated on the same memory, so what a step finds in a farther
//! cache is near here: a step takes longer than its parts.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use umbra_core::dense::linear::Linear;
use umbra_core::dense::replica;
use umbra_core::kernel::{
    Activations, ActivationsMut, DotShape, Mask, Precision, blocked_len, dot, dot_backward, shared,
};
use umbra_core::optim::StepSize;
use umbra_datasets::BatchBuffer;

use super::ready::Ready;
use super::report::{KernelFigure, Rate, median};
use super::trained::Trained;
use super::work::LinearLayer;
use super::{Settings, Subject, work};
use crate::config::convert;
use crate::error::Error;
use crate::launch::environment::Cores;
use crate::launch::processor::{peak_gflops, stay_on, thread_time};
use crate::memory::Lines;

/// Least time of a sample: this, or a tenth of a whole step's sample where that is less.
const SAMPLE: Duration = Duration::from_millis(5);

/// Measures the parts on one core.
///
/// # Errors
/// When the system does not let a thread stay on a core.
pub fn measure(
    subject: &Subject,
    settings: &Settings,
    trained: &[Trained<'_>],
    ready: &mut Ready,
) -> Result<Vec<KernelFigure>, Error> {
    let measure = || {
        Cores::allowed().numbers().next().map_or(Ok(()), stay_on)?;
        let steps = Duration::from_secs_f64(settings.seconds / settings.samples as f64);
        let sample = SAMPLE.min(steps / 10);
        let mut bench = Bench { samples: settings.samples, sample, figures: vec![] };
        for precision in [Precision::F32, Precision::Bf16] {
            let of = |it: &&Trained<'_>| convert::precision(it.variant.config.train.precision);
            let models = trained.iter().filter(|it| of(it) == precision);
            let tiles = models.flat_map(|it| {
                let model = &it.trainer.model;
                settings.batches.iter().map(|batch| model.tile_len(*batch, false))
            });
            for n in tiles.collect::<BTreeSet<_>>() {
                let mut seen = BTreeSet::new();
                for layer in work::layers(&subject.model) {
                    if seen.insert((layer.outputs, layer.inputs, layer.passes_gradient)) {
                        bench.layer(&layer, n, precision);
                    }
                }
                bench.interaction(subject, n, precision);
            }
        }
        for trained in trained {
            for &size in &settings.batches {
                bench.rows(trained, ready.of_size(size));
            }
            bench.dense_update(trained);
        }
        Ok(bench.figures)
    };
    // On a thread of its own: where this one may run is not changed.
    std::thread::scope(|scope| {
        let thread = scope.spawn(measure);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

struct Bench {
    samples: usize,
    /// Least time of a sample.
    sample: Duration,
    figures: Vec<KernelFigure>,
}

impl Bench {
    /// Records the rate of `call`, which does `amount` of what `rate` counts.
    fn calls(
        &mut self,
        (kernel, shape): (&str, String),
        rate: Rate,
        amount: usize,
        mut call: impl FnMut(),
    ) {
        self.record((kernel, shape), rate, |repeats| {
            let start = thread_time();
            (0..repeats).for_each(|_| call());
            (amount * repeats, thread_time() - start)
        });
    }

    /// Records the rate of `run`, which does something as often as it is told and returns what it
    /// did in what time.
    fn record(
        &mut self,
        (kernel, shape): (&str, String),
        rate: Rate,
        mut run: impl FnMut(usize) -> (usize, Duration),
    ) {
        let mut repeats = 1;
        while run(repeats).1 < self.sample {
            repeats *= 2;
        }
        let mut peak = peak_gflops(Precision::F32);
        let (mut rates, mut shares) = (vec![], vec![]);
        for _ in 0..self.samples {
            let (amount, time) = run(repeats);
            let after = peak_gflops(Precision::F32);
            let billions = amount as f64 / time.as_secs_f64() / 1e9;
            rates.push(billions);
            shares.push(billions / f64::midpoint(peak, after));
            peak = after;
        }
        let share = median(&mut shares);
        self.figures.push(KernelFigure::new((kernel, shape), rate, rates, share));
    }

    /// The products of a layer for a tile of `n` examples, as a step makes them here: what they
    /// multiply is split or rounded where it is multiplied, W to bf16 once a step. Narrow layers
    /// are those of f32s whatever `precision` is.
    fn layer(&mut self, layer: &LinearLayer, n: usize, precision: Precision) {
        let (inputs, outputs) = (layer.inputs, layer.outputs);
        let linear = |bias| {
            let mut linear = Linear::new((outputs, inputs), 0, bias);
            linear.set_precision(precision);
            linear
        };
        let (with_bias, linear) = (linear(Some(outputs * inputs)), linear(None));
        let flop = 2 * n * outputs * inputs;
        let shape = || format!("{n}x{outputs}x{inputs}{}", suffix(precision));
        let (x, mut y) = (numbers(blocked_len(n, inputs)), numbers(blocked_len(n, outputs)));
        let mut parameters = numbers(outputs * inputs + outputs);
        let parameters = shared(&mut parameters);
        let mut prepared = numbers(linear.prepared_len());
        let (mut kept, mut scratch) = (numbers(linear.kept_len(n)), numbers(linear.scratch_len(n)));
        let of_weight = format!("{outputs}x{inputs}{}", suffix(precision));
        let bytes = 2 * size_of::<f32>() * outputs * inputs;
        if linear.rounds() {
            self.calls(("round", of_weight), Rate::Bytes, bytes, || {
                linear.round(parameters, &mut prepared);
            });
        } else if layer.passes_gradient && !linear.splits(n) {
            self.calls(("transpose", of_weight), Rate::Bytes, bytes, || {
                linear.transpose(parameters, &mut prepared);
            });
        }
        self.calls(("forward", shape()), Rate::Flop, flop, || {
            let (x, y) = (Activations::blocked(&x, n, inputs), &mut y);
            let y = &mut ActivationsMut::blocked(y, n, outputs);
            let memory = (&mut *kept, &mut *scratch);
            with_bias.forward_in_training(parameters, &mut prepared, (x, 0..n), true, y, memory);
        });
        let mut gradient = numbers(outputs * inputs);
        if layer.passes_gradient {
            let below = numbers(blocked_len(n, inputs));
            let mask = Mask { y: Activations::blocked(&below, n, inputs), scale: 1.0 };
            let (x, d_y) = (mask.y, Activations::blocked(&y, n, outputs));
            let mut operands = linear.operands((x, 0..n), d_y, true, &kept, &mut scratch);
            let mut d_x = numbers(blocked_len(n, inputs));
            self.calls(("data_gradient", shape()), Rate::Flop, flop, || {
                let transposed = linear.transposed(parameters, n, (false, false), &mut prepared);
                let d_x = &mut ActivationsMut::blocked(&mut d_x, n, inputs);
                linear.data_gradient(&mut operands, transposed, Some(mask), d_x);
            });
        }
        self.calls(("weight_gradient", shape()), Rate::Flop, flop, || {
            let (x, d_y) = (&x, Activations::blocked(&y, n, outputs));
            let (x, d_x) = (Activations::blocked(x, n, inputs), layer.passes_gradient);
            let operands = linear.operands((x, 0..n), d_y, d_x, &kept, &mut scratch);
            linear.gradient(operands, true, None, &mut gradient);
        });
    }

    /// DLRM's dot interaction for a tile of `n` examples.
    fn interaction(&mut self, subject: &Subject, n: usize, precision: Precision) {
        let (lead, pairs) = work::dot_columns(&subject.model);
        if pairs == 0 {
            return;
        }
        let width = subject.model.row_width();
        let vectors = subject.cardinality.len() + usize::from(lead > 0);
        let dots = DotShape { vectors, width, lead };
        let (flop, shape) =
            (2 * n * pairs * width, || format!("{n}x{vectors}x{width}{}", suffix(precision)));
        let (t, mut d_t) = (numbers(dots.vectors_len(n)), numbers(dots.vectors_len(n)));
        let mut out = numbers(blocked_len(n, dots.columns()));
        let mut scratch = numbers(dots.scratch_len());
        self.calls(("dot", shape()), Rate::Flop, flop, || {
            let out = &mut ActivationsMut::blocked(&mut out, n, dots.columns());
            dot(precision, dots, &t, out, &mut scratch);
        });
        self.calls(("dot_backward", shape()), Rate::Flop, 2 * flop, || {
            let d_out = Activations::blocked(&out, n, dots.columns());
            dot_backward(precision, dots, &t, d_out, &mut d_t, &mut scratch);
        });
    }

    /// The way of a batch's rows through a worker's client: coalesced, looked up, updated.
    fn rows(&mut self, trained: &Trained<'_>, batches: &mut VecDeque<BatchBuffer>) {
        let Some(first) = batches.front() else { return };
        let (size, ids) = (first.len(), first.values.len());
        let width = trained.trainer.model.row_width();
        let rate = trained.trainer.rates(0).1;
        let most = batches.iter().map(|batch| batch.values.len()).max().unwrap_or(0);
        let gradients = vec![1e-3; most * width];
        let mut client = trained.client();
        for (part, kernel) in ["coalesce", "row_lookup", "row_update"].into_iter().enumerate() {
            let shape = format!("{size}x{ids}x{width} {}", trained.variant.name);
            self.record((kernel, shape), Rate::Rows, |repeats| {
                let (mut amount, mut spent) = (0, Duration::ZERO);
                for _ in 0..repeats {
                    let Some(batch) = batches.pop_front() else { break };
                    let ids = batch.values.len();
                    let start = thread_time();
                    // A training step would read its rows itself, and update them.
                    client.ask_now(batch, 0);
                    let asked = thread_time();
                    let Ok(Some((lookup, _))) = client.take() else { break };
                    let taken = thread_time();
                    client.push(&lookup, &gradients[..lookup.rows.len()], rate);
                    let times = [asked - start, taken - asked, thread_time() - taken];
                    let rows = lookup.rows_len();
                    amount += [ids, rows, rows][part];
                    spent += times[part];
                    batches.push_back(client.recycle(lookup));
                }
                (amount, spent)
            });
        }
    }

    /// The update of all dense parameters.
    fn dense_update(&mut self, trained: &Trained<'_>) {
        let trainer = &trained.trainer;
        let parameters = &trainer.replica[..trainer.model.parameters_len()];
        let gradient = vec![1e-6; parameters.len()];
        let size = StepSize { rate: trainer.rates(0).0, count: 1 };
        // Read: gradient, parameter, state. Written: parameter, state.
        let bytes = 4 * (3 * parameters.len() + 2 * trainer.state.len());
        let shape = format!("{} {}", parameters.len(), trained.variant.name);
        self.calls(("dense_update", shape), Rate::Bytes, bytes, || {
            replica::update(&trainer.optimizer, size, parameters, &trainer.state, &gradient);
        });
    }
}

/// What names a precision in a shape.
const fn suffix(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "",
        Precision::Bf16 => " bf16",
    }
}

/// Small numbers.
fn numbers(len: usize) -> Lines {
    let mut numbers = Lines::zeros(len);
    numbers.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 7) as f32 * 0.01 - 0.02);
    numbers
}
