//! The models again, in f64 and straight from their definitions: no tiles, no packing, no backward.

use umbra_core::batch::{Batch, Jagged};
use umbra_core::dense::dropout::{Masks, drop_units};
use umbra_core::kernel::{ActivationsMut, Strides};
use umbra_core::model::{
    Input, Model, ModelConfig, ModelKind, Pooling, StepKey, Structure, Tensor,
};
use umbra_core::rng::{Purpose, Stream};

/// Key of every training step of these tests.
pub(crate) const KEY: StepKey = StepKey { seed: 77, step: 5 };

/// A random batch with its gathered rows and a random replica.
pub(crate) struct Data {
    pub(crate) label: Vec<f32>,
    pub(crate) weight: Vec<f32>,
    pub(crate) dense: Vec<f32>,
    pub(crate) values: Vec<u32>,
    /// Of the ids in their bags, or empty.
    pub(crate) value_weights: Vec<f32>,
    pub(crate) offsets: Vec<u32>,
    pub(crate) row: Vec<u64>,
    /// The first strip of every field and the end of the last, or empty.
    pub(crate) strips: Vec<u32>,
    pub(crate) rows: Vec<f32>,
    pub(crate) replica: Vec<f32>,
}

/// Distinct rows of every batch.
const ROWS: u64 = 11;

impl Data {
    /// `n` examples: bags of 0 to 3 ids, soft labels, weights from 0.5 to 1.5.
    pub(crate) fn new(config: &ModelConfig, model: &Model, seed: u64, n: usize) -> Self {
        let column = |number: u32, len: usize| -> Vec<f32> {
            let stream = Stream::new(seed, Purpose::Test(number));
            (0..len as u64).map(|i| stream.uniform(i)).collect()
        };
        let lengths = Stream::new(seed, Purpose::Test(10));
        let mut offsets = vec![0];
        for bag in 0..n * model.bags() {
            offsets.push(offsets[bag] + lengths.below(bag as u64, 4) as u32);
        }
        let ids = Stream::new(seed, Purpose::Test(11));
        let count = u64::from(offsets[n * model.bags()]);
        let mut replica: Vec<f32> =
            column(5, model.replica_len()).iter().map(|x| x - 0.5).collect();
        for tensor in model.tensors().filter(|t| t.name.to_string().ends_with("variance")) {
            let variance = &mut replica[tensor.offset..tensor.offset + tensor.len()];
            variance.iter_mut().for_each(|x| *x += 1.0);
        }
        Self {
            label: column(1, n).iter().map(|x| if *x < 0.2 { *x } else { x.round() }).collect(),
            weight: column(2, n).iter().map(|x| x + 0.5).collect(),
            dense: column(3, n * config.dense_features).iter().map(|x| 2.0 * x - 1.0).collect(),
            values: (0..count).map(|i| ids.below(i, ROWS) as u32).collect(),
            value_weights: vec![],
            offsets,
            row: (0..n as u64).map(|i| 1000 + 7 * i).collect(),
            strips: vec![],
            rows: column(4, ROWS as usize * model.row_width()).iter().map(|x| x - 0.5).collect(),
            replica,
        }
    }

    /// Gives ids weights from 0 to 2, a quarter of them 0; every fifth bag has no others.
    pub(crate) fn weigh_ids(&mut self, seed: u64) {
        let stream = Stream::new(seed, Purpose::Test(12));
        self.value_weights.clear();
        for (bag, ends) in self.offsets.windows(2).enumerate() {
            let weights = (ends[0]..ends[1]).map(|at| {
                let x = stream.uniform(u64::from(at));
                if bag % 5 == 0 || x < 0.25 { 0.0 } else { 2.0 * x }
            });
            self.value_weights.extend(weights);
        }
    }

    /// Ids are slots already: every batch knows the same rows.
    pub(crate) fn input(&self) -> Input<'_> {
        let (values, offsets) = (&self.values, &self.offsets);
        let bags = Jagged { values, offsets, weights: &self.value_weights };
        let (label, weight, dense) = (&self.label, &self.weight, &self.dense);
        let batch = Batch { label, weight, dense, bags, row: &self.row };
        Input {
            batch,
            rows: &self.rows,
            slot: &self.values,
            strips: &self.strips,
            named_once: false,
        }
    }

    /// Examples `from..to` alone, with the same rows and replica.
    pub(crate) fn part(&self, config: &ModelConfig, from: usize, to: usize) -> Self {
        let (s, d) = (config.fields, config.dense_features);
        let start = self.offsets[from * s];
        let end = self.offsets[to * s];
        Self {
            label: self.label[from..to].to_vec(),
            weight: self.weight[from..to].to_vec(),
            dense: self.dense[from * d..to * d].to_vec(),
            values: self.values[start as usize..end as usize].to_vec(),
            value_weights: match &self.value_weights[..] {
                [] => vec![],
                weights => weights[start as usize..end as usize].to_vec(),
            },
            offsets: self.offsets[from * s..=to * s].iter().map(|x| x - start).collect(),
            row: self.row[from..to].to_vec(),
            strips: vec![],
            rows: self.rows.clone(),
            replica: self.replica.clone(),
        }
    }
}

/// What the twin computes.
pub(crate) struct Outcome {
    pub(crate) logits: Vec<f64>,
    /// Weighted mean of the losses.
    pub(crate) loss: f64,
    /// Batch mean and unbiased variance at their places in the replica, counted from the
    /// parameters' end.
    pub(crate) statistics: Vec<f64>,
}

/// One forward pass of the twin.
pub(crate) struct Twin<'a> {
    pub(crate) config: &'a ModelConfig<'a>,
    pub(crate) model: &'a Model,
    pub(crate) data: &'a Data,
    pub(crate) training: bool,
}

/// Numbers of the pass, and the statistics it writes.
struct Pass<'a> {
    replica: &'a [f64],
    statistics: Vec<f64>,
    dropout_layer: u32,
}

impl Twin<'_> {
    fn n(&self) -> usize {
        self.data.label.len()
    }

    /// The tensor called `name`, if the model has it.
    fn find(&self, name: &str) -> Option<Tensor> {
        self.model.tensors().find(|t| t.name.to_string() == name)
    }

    /// Its elements, row-major.
    fn tensor(&self, replica: &[f64], name: &str) -> Option<Vec<f64>> {
        Some(self.find(name)?.places().map(|place| replica[place]).collect())
    }

    pub(crate) fn run(&self, replica: &[f64], rows: &[f64]) -> Outcome {
        let statistics = vec![0.0; self.model.replica_len() - self.model.parameters_len()];
        let mut pass = Pass { replica, statistics, dropout_layer: 0 };
        let logits = match self.config.kind {
            ModelKind::Dlrm => self.dlrm(&mut pass, rows),
            ModelKind::DeepFm | ModelKind::Fm | ModelKind::Lr => {
                self.factorization(&mut pass, rows)
            }
            ModelKind::DcnV2 => self.dcn_v2(&mut pass, rows),
            ModelKind::WideDeep => self.wide_deep(&mut pass, rows),
        };
        let (mut loss, mut weights) = (0.0, 0.0);
        for (i, z) in logits.iter().enumerate() {
            let weight = f64::from(self.data.weight[i]);
            loss += weight * cross_entropy(*z, f64::from(self.data.label[i]));
            weights += weight;
        }
        Outcome { logits, loss: loss / weights, statistics: pass.statistics }
    }

    fn dlrm(&self, pass: &mut Pass, rows: &[f64]) -> Vec<f64> {
        let (n, d, s) = (self.n(), self.config.embedding_dim, self.config.fields);
        let pooled = self.pooled(pass.replica, rows);
        let dense = wide(&self.data.dense);
        let x = if self.config.dense_features > 0 {
            self.chain(pass, "bottom", dense, self.config.dense_features, self.config.bottom, true)
        } else {
            vec![]
        };
        let mut joined = vec![];
        for i in 0..n {
            let mut t = vec![];
            if !x.is_empty() {
                t.extend(&x[i * d..(i + 1) * d]);
                joined.extend(&t);
            }
            t.extend(&pooled[i * s * d..(i + 1) * s * d]);
            joined.extend(dot(&t, d));
        }
        let widths: Vec<usize> = self.config.top.iter().copied().chain([1]).collect();
        let inputs = joined.len() / n;
        self.chain(pass, "top", joined, inputs, &widths, false)
    }

    fn factorization(&self, pass: &mut Pass, rows: &[f64]) -> Vec<f64> {
        let (n, features, s) = (self.n(), self.config.dense_features, self.config.fields);
        let d = self.width() - 1;
        let pooled = self.pooled(pass.replica, rows);
        let bias = self.tensor(pass.replica, "bias").unwrap()[0];
        let weight = self.tensor(pass.replica, "dense.weight").unwrap_or_default();
        let factors = self.tensor(pass.replica, "dense.vectors").unwrap_or_default();
        let (mut logits, mut vectors) = (vec![bias; n], vec![]);
        for i in 0..n {
            let mut v = vec![];
            for row in pooled[i * s * (1 + d)..(i + 1) * s * (1 + d)].chunks(1 + d) {
                logits[i] += row[0];
                v.extend(&row[1..]);
            }
            for (j, w) in weight.iter().enumerate() {
                let x = f64::from(self.data.dense[i * features + j]);
                logits[i] += w * x;
                v.extend(factors.iter().skip(j * d).take(d).map(|v| v * x));
            }
            if d > 0 {
                // The definition: every pair once.
                logits[i] += dot(&v, d).iter().sum::<f64>();
            }
            vectors.extend(v);
        }
        if self.config.kind == ModelKind::DeepFm {
            let widths: Vec<usize> = self.config.top.iter().copied().chain([1]).collect();
            let deep = self.chain(pass, "deep", vectors, (features + s) * d, &widths, false);
            logits.iter_mut().zip(deep).for_each(|(logit, deep)| *logit += deep);
        }
        logits
    }

    fn dcn_v2(&self, pass: &mut Pass, rows: &[f64]) -> Vec<f64> {
        let x0 = self.concatenated(pass.replica, rows, 0);
        let width = x0.len() / self.n();
        let mut x = x0.clone();
        for layer in 0..self.config.cross.layers {
            let of = |item: &str| self.tensor(pass.replica, &format!("cross.{layer}.{item}"));
            let w = match self.config.cross.rank {
                0 => of("weight").unwrap(),
                rank => {
                    // The product itself, which the model never forms.
                    let (u, v) = (of("u.weight").unwrap(), of("v.weight").unwrap());
                    let one = |o: usize, i: usize| {
                        (0..rank).map(|k| u[o * rank + k] * v[k * width + i]).sum()
                    };
                    (0..width * width).map(|at| one(at / width, at % width)).collect()
                }
            };
            let wx = linear(&x, width, &w, of("bias").as_deref(), width);
            x = x0.iter().zip(wx).zip(x).map(|((x0, wx), x)| x0 * wx + x).collect();
        }
        let widths: Vec<usize> = self.config.top.iter().copied().chain([1]).collect();
        match self.config.cross.structure {
            Structure::Stacked => self.chain(pass, "deep", x, width, &widths, false),
            Structure::Parallel => {
                let deep = self.chain(pass, "deep", x0, width, &widths, false);
                let head = self.chain(pass, "head", x, width, &[1], false);
                deep.iter().zip(head).map(|(deep, head)| deep + head).collect()
            }
        }
    }

    fn wide_deep(&self, pass: &mut Pass, rows: &[f64]) -> Vec<f64> {
        let (features, s, w) = (self.config.dense_features, self.config.fields, self.width());
        let pooled = self.pooled(pass.replica, rows);
        let bias = self.tensor(pass.replica, "bias").unwrap()[0];
        let weight = self.tensor(pass.replica, "dense.weight").unwrap_or_default();
        let x = self.concatenated(pass.replica, rows, 1);
        let widths: Vec<usize> = self.config.top.iter().copied().chain([1]).collect();
        let mut logits = self.chain(pass, "deep", x, s * (w - 1) + features, &widths, false);
        for (i, logit) in logits.iter_mut().enumerate() {
            let first = pooled.iter().step_by(w).skip(i * s).take(s).sum::<f64>();
            let x = &self.data.dense[i * features..(i + 1) * features];
            let dense: f64 = weight.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum();
            *logit += bias + first + dense;
        }
        logits
    }

    /// Embedding vectors, of the columns from `first` on, then dense features. `[n, S·d + D]`
    fn concatenated(&self, replica: &[f64], rows: &[f64], first: usize) -> Vec<f64> {
        let (features, s, w) = (self.config.dense_features, self.config.fields, self.width());
        let pooled = self.pooled(replica, rows);
        let mut x = vec![];
        for i in 0..self.n() {
            for field in i * s..(i + 1) * s {
                x.extend(&pooled[field * w + first..(field + 1) * w]);
            }
            x.extend(wide(&self.data.dense[i * features..(i + 1) * features]));
        }
        x
    }

    /// Linear, norm, ReLU, dropout; the last layer without norm and dropout, with ReLU if told.
    fn chain(
        &self,
        pass: &mut Pass,
        group: &str,
        mut x: Vec<f64>,
        mut inputs: usize,
        widths: &[usize],
        relu_last: bool,
    ) -> Vec<f64> {
        for (layer, &outputs) in widths.iter().enumerate() {
            let hidden = layer + 1 < widths.len();
            let name = |item: &str| format!("{group}.{layer}.{item}");
            let w = self.tensor(pass.replica, &name("weight")).unwrap();
            let b = self.tensor(pass.replica, &name("bias"));
            let biased = b.as_ref().is_none_or(|b| b.len() == outputs);
            assert_eq!((w.len(), biased), (outputs * inputs, true));
            x = linear(&x, inputs, &w, b.as_deref(), outputs);
            if hidden && self.config.batch_norm {
                let (mean, variance) = (name("norm.mean"), name("norm.variance"));
                let used = if self.training {
                    let (batch_mean, batch_variance) = moments(&x, outputs);
                    let n = self.n() as f64;
                    for (place, values, factor) in
                        [(&mean, &batch_mean, 1.0), (&variance, &batch_variance, n / (n - 1.0))]
                    {
                        let at = self.find(place).unwrap().offset - self.model.parameters_len();
                        for (to, value) in pass.statistics[at..at + outputs].iter_mut().zip(values)
                        {
                            *to = value * factor;
                        }
                    }
                    (batch_mean, batch_variance)
                } else {
                    let of = |name: &str| self.tensor(pass.replica, name).unwrap();
                    (of(&mean), of(&variance))
                };
                let of = |item: &str| self.tensor(pass.replica, &name(item)).unwrap();
                x = norm(&x, &used.0, &used.1, &of("norm.scale"), &of("norm.shift"));
            }
            if hidden || relu_last {
                x.iter_mut().for_each(|x| *x = x.max(0.0));
            }
            if hidden && self.training {
                let p = self.config.dropout;
                let mask = mask(pass.dropout_layer, p, &self.data.row, outputs);
                x.iter_mut().zip(mask).for_each(|(x, m)| *x *= m);
            }
            pass.dropout_layer += 1;
            inputs = outputs;
        }
        x
    }

    /// Columns of a pooled vector and its first-order parameter.
    fn width(&self) -> usize {
        let columns = if self.config.kind == ModelKind::Lr { 1 } else { self.config.embedding_dim };
        columns + self.model.first_order_columns() * usize::from(self.config.kind != ModelKind::Lr)
    }

    /// `[n, S, width]`
    fn pooled(&self, replica: &[f64], rows: &[f64]) -> Vec<f64> {
        let data = self.data;
        let bags =
            Jagged { values: &data.values, offsets: &data.offsets, weights: &data.value_weights };
        let pooled = pool(bags, rows, self.model.row_width(), self.config.pooling);
        if data.strips.is_empty() {
            return pooled;
        }
        let (first, d) = (self.model.first_order_columns(), self.config.embedding_dim);
        let matrix = self.tensor(replica, "projection.weight").unwrap_or_default();
        let (width, mut out) = (self.model.row_width(), vec![]);
        for example in pooled.chunks(self.model.bags() * width) {
            let mut matrix = &matrix[..];
            for ends in data.strips.windows(2) {
                let own = &example[ends[0] as usize * width..ends[1] as usize * width];
                let vector: Vec<f64> =
                    own.chunks(width).flat_map(|strip| strip[first..].to_vec()).collect();
                out.extend(&own[..first]);
                if vector.len() == d {
                    out.extend(vector);
                    continue;
                }
                let (own, rest) = matrix.split_at(vector.len() * d);
                let column =
                    |j| vector.iter().enumerate().map(|(k, x)| x * own[k * d + j]).sum::<f64>();
                out.extend((0..d).map(column));
                matrix = rest;
            }
        }
        out
    }
}

pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// Factors of a dropout layer: 0 or 1 / (1 − p). The masks themselves are tested beside their
/// source.
pub(crate) fn mask(layer: u32, probability: f32, rows: &[u64], units: usize) -> Vec<f64> {
    let mut ones = vec![1.0; rows.len() * units];
    let strides = Strides::row_major(units);
    let mut view = ActivationsMut::new(&mut ones, rows.len(), units, strides);
    drop_units(Masks::new(KEY, rows, layer, probability), &mut view);
    let kept = 1.0 / (1.0 - f64::from(probability));
    ones.iter().map(|x| if *x == 0.0 { 0.0 } else { kept }).collect()
}

pub(crate) fn linear(
    x: &[f64],
    inputs: usize,
    w: &[f64],
    b: Option<&[f64]>,
    outputs: usize,
) -> Vec<f64> {
    let mut y = vec![];
    for x in x.chunks(inputs) {
        for o in 0..outputs {
            let sum: f64 = x.iter().zip(&w[o * inputs..]).map(|(x, w)| x * w).sum();
            y.push(sum + b.map_or(0.0, |b| b[o]));
        }
    }
    y
}

/// Mean and biased variance of every column.
pub(crate) fn moments(x: &[f64], units: usize) -> (Vec<f64>, Vec<f64>) {
    let n = (x.len() / units) as f64;
    let of = |c: usize| x.iter().skip(c).step_by(units);
    let mean: Vec<f64> = (0..units).map(|c| of(c).sum::<f64>() / n).collect();
    let squares = |c: usize| of(c).map(|x| (x - mean[c]).powi(2)).sum::<f64>() / n;
    let variance = (0..units).map(squares).collect();
    (mean, variance)
}

pub(crate) fn norm(
    x: &[f64],
    mean: &[f64],
    variance: &[f64],
    scale: &[f64],
    shift: &[f64],
) -> Vec<f64> {
    let units = mean.len();
    let one = |(i, x): (usize, &f64)| {
        let c = i % units;
        (x - mean[c]) / (variance[c] + 1e-5).sqrt() * scale[c] + shift[c]
    };
    x.iter().enumerate().map(one).collect()
}

/// The values of `bags` are slots.
pub(crate) fn pool(bags: Jagged<'_>, rows: &[f64], width: usize, pooling: Pooling) -> Vec<f64> {
    let mut out = vec![];
    for ends in bags.offsets.windows(2) {
        let places = ends[0] as usize..ends[1] as usize;
        let weight = |at: usize| bags.weights.get(at).map_or(1.0, |weight| f64::from(*weight));
        let weights: f64 = places.clone().map(weight).sum();
        for c in 0..width {
            let row = |at: usize| rows[bags.values[at] as usize * width + c];
            let sum: f64 = places.clone().map(|at| weight(at) * row(at)).sum();
            out.push(match pooling {
                Pooling::Mean if weights > 0.0 => sum / weights,
                Pooling::Sum | Pooling::Mean => sum,
            });
        }
    }
    out
}

/// Dot products of all pairs of vectors of width `d`: for i, for j < i.
pub(crate) fn dot(t: &[f64], d: usize) -> Vec<f64> {
    let vectors: Vec<&[f64]> = t.chunks(d).collect();
    let mut z = vec![];
    for i in 0..vectors.len() {
        for j in 0..i {
            z.push(vectors[i].iter().zip(vectors[j]).map(|(a, b)| a * b).sum());
        }
    }
    z
}

/// The definition with probabilities, not the fused form.
pub(crate) fn cross_entropy(z: f64, y: f64) -> f64 {
    let p = 1.0 / (1.0 + (-z).exp());
    -y * p.ln() - (1.0 - y) * (1.0 - p).ln()
}
