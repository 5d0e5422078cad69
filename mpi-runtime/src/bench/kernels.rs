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
    Activations, ActivationsMut, DotShape, Factors, Mask, PANEL, Precision, Transposed,
    blocked_len, data_gradient, data_gradient_of_thirds, dot, dot_backward, forward,
    forward_of_thirds, shared, split_examples, thirds_len, transpose, weight_gradient,
};
use umbra_core::optim::StepSize;
use umbra_datasets::BatchBuffer;

use super::ready::Ready;
use super::report::{KernelFigure, Rate, median};
use super::trained::Trained;
use super::work::LinearLayer;
use super::{Settings, Subject, work};
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
        let tiles = settings.batches.iter().map(|batch| subject.model.tile_len(*batch, false));
        for n in tiles.collect::<BTreeSet<_>>() {
            let mut seen = BTreeSet::new();
            for layer in work::layers(&subject.model) {
                if seen.insert((layer.outputs, layer.inputs, layer.passes_gradient)) {
                    bench.layer(&layer, n);
                }
            }
            bench.interaction(subject, n);
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
        let mut peak = peak_gflops();
        let (mut rates, mut shares) = (vec![], vec![]);
        for _ in 0..self.samples {
            let (amount, time) = run(repeats);
            let after = peak_gflops();
            let billions = amount as f64 / time.as_secs_f64() / 1e9;
            rates.push(billions);
            shares.push(billions / f64::midpoint(peak, after));
            peak = after;
        }
        let share = median(&mut shares);
        self.figures.push(KernelFigure::new((kernel, shape), rate, rates, share));
    }

    /// The products of a layer for a tile of `n` examples, as a step makes them here.
    fn layer(&mut self, layer: &LinearLayer, n: usize) {
        if Linear::new((layer.outputs, layer.inputs), 0, None).splits(n) {
            return self.layer_of_thirds(layer, n);
        }
        let (inputs, outputs) = (layer.inputs, layer.outputs);
        let flop = 2 * n * outputs * inputs;
        let shape = || format!("{n}x{outputs}x{inputs}");
        let mut x = numbers(blocked_len(n, inputs));
        let mut y = numbers(blocked_len(n, outputs));
        let (mut weight, mut bias) = (numbers(outputs * inputs), numbers(outputs));
        let (weight, bias) = (shared(&mut weight), shared(&mut bias));
        self.calls(("forward", shape()), Rate::Flop, flop, || {
            let x = Activations::blocked(&x, n, inputs);
            forward(x, weight, Some(bias), true, &mut ActivationsMut::blocked(&mut y, n, outputs));
        });
        let mut gradient = numbers(outputs * inputs);
        if layer.passes_gradient {
            let (transposed, below) = (&mut gradient[..], numbers(blocked_len(n, inputs)));
            let shape_of_weight = format!("{outputs}x{inputs}");
            let bytes = 2 * size_of_val(weight);
            self.calls(("transpose", shape_of_weight), Rate::Bytes, bytes, || {
                transpose(weight, outputs, inputs, transposed);
            });
            self.calls(("data_gradient", shape()), Rate::Flop, flop, || {
                let d_y = Activations::blocked(&y, n, outputs);
                let mask = Mask { y: Activations::blocked(&below, n, inputs), scale: 1.0 };
                let d_x = &mut ActivationsMut::blocked(&mut x, n, inputs);
                let transposed = Transposed::Made(transposed);
                data_gradient(Precision::F32, d_y, transposed, Some(mask), d_x);
            });
        }
        self.calls(("weight_gradient", shape()), Rate::Flop, flop, || {
            let x = Activations::blocked(&x, n, inputs);
            let d_y = Activations::blocked(&y, n, outputs);
            weight_gradient(Factors::Whole(x, d_y), true, &mut gradient);
        });
    }

    /// The same of thirds: everything is split where it is multiplied.
    fn layer_of_thirds(&mut self, layer: &LinearLayer, n: usize) {
        let (inputs, outputs) = (layer.inputs, layer.outputs);
        let flop = 2 * n * outputs * inputs;
        let shape = || format!("{n}x{outputs}x{inputs}");
        let mut x = numbers(blocked_len(n, inputs));
        let mut y = numbers(blocked_len(n, outputs));
        let (mut weight, mut bias) = (numbers(outputs * inputs), numbers(outputs));
        let (weight, bias) = (shared(&mut weight), shared(&mut bias));
        let of_columns = thirds_len(n, inputs.max(outputs));
        let mut split = numbers(of_columns.max(thirds_len(outputs, n)));
        let mut panels = numbers(thirds_len(2 * PANEL, inputs.max(outputs)));
        self.calls(("forward", shape()), Rate::Flop, flop, || {
            let x = Activations::blocked(&x, n, inputs);
            let y = &mut ActivationsMut::blocked(&mut y, n, outputs);
            forward_of_thirds(x, weight, Some(bias), true, y, (&mut split, &mut panels));
        });
        let below = numbers(blocked_len(n, inputs));
        if layer.passes_gradient {
            self.calls(("data_gradient", shape()), Rate::Flop, flop, || {
                let d_y = Activations::blocked(&y, n, outputs);
                let mask = Mask { y: Activations::blocked(&below, n, inputs), scale: 1.0 };
                let d_x = &mut ActivationsMut::blocked(&mut x, n, inputs);
                data_gradient_of_thirds(d_y, weight, Some(mask), d_x, (&mut split, &mut panels));
            });
        }
        let mut gradient = numbers(outputs * inputs);
        self.calls(("weight_gradient", shape()), Rate::Flop, flop, || {
            let d_y = split_examples(Activations::blocked(&y, n, outputs), &mut split);
            let x = Activations::blocked(&x, n, inputs);
            weight_gradient(Factors::Thirds(x, d_y), true, &mut gradient);
        });
    }

    /// DLRM's dot interaction for a tile of `n` examples.
    fn interaction(&mut self, subject: &Subject, n: usize) {
        let (lead, pairs) = work::dot_columns(&subject.model);
        if pairs == 0 {
            return;
        }
        let width = subject.model.row_width();
        let vectors = subject.cardinality.len() + usize::from(lead > 0);
        let dots = DotShape { vectors, width, lead };
        let (flop, shape) = (2 * n * pairs * width, || format!("{n}x{vectors}x{width}"));
        let (t, mut d_t) = (numbers(dots.vectors_len(n)), numbers(dots.vectors_len(n)));
        let mut out = numbers(blocked_len(n, dots.columns()));
        let mut scratch = numbers(dots.scratch_len());
        self.calls(("dot", shape()), Rate::Flop, flop, || {
            let out = &mut ActivationsMut::blocked(&mut out, n, dots.columns());
            dot(Precision::F32, dots, &t, out, &mut scratch);
        });
        self.calls(("dot_backward", shape()), Rate::Flop, 2 * flop, || {
            let d_out = Activations::blocked(&out, n, dots.columns());
            dot_backward(Precision::F32, dots, &t, d_out, &mut d_t, &mut scratch);
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

/// Small numbers.
fn numbers(len: usize) -> Lines {
    let mut numbers = Lines::zeros(len);
    numbers.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 7) as f32 * 0.01 - 0.02);
    numbers
}
