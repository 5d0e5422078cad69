#![allow(missing_docs,clippy::all)]
use std::time::{Duration, Instant};
use umbra_core::batch::{Batch, Jagged};
use umbra_core::kernel::{self, *};
use umbra_core::model::{Gradients, Input, Model, ModelConfig, ModelKind, Pooling, StepKey, Workspace};
use umbra_core::rng::{Purpose, Stream};
fn best(mut f: impl FnMut()) -> Duration {
    f();
    let until = Instant::now() + Duration::from_millis(400);
    let mut v = vec![];
    while Instant::now() < until || v.len() < 5 { let s = cpu(); f(); v.push(cpu() - s); }
    v.sort(); v[v.len() / 4]
}
fn cpu() -> Duration { let mut t = [0i64; 2]; unsafe { core::arch::asm!("syscall", in("rax") 228, in("rdi") 3, in("rsi") t.as_mut_ptr(), lateout("rcx") _, lateout("r11") _, lateout("rax") _); } Duration::new(t[0] as u64, t[1] as u32) }
fn peak() -> f64 { let mut v: Vec<f64> = (0..5).map(|_| { let s = cpu(); let f = peak_burst(3000); f as f64 / (cpu() - s).as_secs_f64() / 1e9 }).collect(); v.sort_by(f64::total_cmp); v[2] }
fn main() {
    match std::env::args().nth(1).as_deref() { Some("plain") => kernel::select(Simd::Plain).unwrap(), Some("avx2") => kernel::select(Simd::Avx2).unwrap(), _ => {} }
    let pk = peak();
    println!("{:?} peak {pk:.1}", kernel::selected());
    for (n, o, i) in [(128, 512, 13), (128, 256, 512), (128, 64, 256), (128, 16, 64), (128, 512, 367), (128, 1, 256), (4096, 400, 400)] {
        let mut x = vec![0.5f32; blocked_len(n, i) + 16]; let mut y = vec![0.5f32; blocked_len(n, o) + 16];
        let s = x.as_ptr().align_offset(64); let x = &mut x[s..]; let s = y.as_ptr().align_offset(64); let y = &mut y[s..];
        let mut w = vec![0.1f32; o * i + 16]; let mut wt = w.clone(); let mut g = w.clone();
        let sw = w.as_ptr().align_offset(64); let swt = wt.as_ptr().align_offset(64); let sg = g.as_ptr().align_offset(64);
        let b = &mut vec![0.0f32; o][..]; let b = shared(b);
        let f = best(|| forward(Activations::blocked(x, n, i), shared(&mut w[sw..sw+o*i]), Some(b), true, &mut ActivationsMut::blocked(y, n, o)));
        let t = best(|| transpose(shared(&mut w[sw..sw+o*i]), o, i, &mut wt[swt..swt+o*i]));
        let d = best(|| data_gradient(Activations::blocked(y, n, o), &wt[swt..swt+o*i], None, &mut ActivationsMut::blocked(x, n, i)));
        let g_ = best(|| weight_gradient(Activations::blocked(x, n, i), Activations::blocked(y, n, o), false, &mut g[sg..sg+o*i]));
        let fl = 2.0 * (n * o * i) as f64 / 1e9 / pk * 100.0;
        println!("{n}x{o}x{i}: forward {:.0}% dgrad {:.0}% wgrad {:.0}% transpose {:.1} us of forward {:.1} us", fl / f.as_secs_f64(), fl / d.as_secs_f64(), fl / g_.as_secs_f64(), t.as_secs_f64() * 1e6, f.as_secs_f64() * 1e6);
    }
    let shape = DotShape { vectors: 27, width: 16, lead: 16 };
    let n = 128; let t = vec![0.5f32; shape.vectors_len(n)]; let mut o = vec![0.0; blocked_len(n, 367)]; let mut sc = vec![0.0; shape.scratch_len()]; let mut dt = t.clone();
    let f = best(|| dot(shape, &t, &mut ActivationsMut::blocked(&mut o, n, 367), &mut sc));
    let d = best(|| dot_backward(shape, &t, Activations::blocked(&o, n, 367), &mut dt, &mut sc));
    println!("dot {:.0} ns/example, backward {:.0} ns/example (of {:.0} ns at the floor)", f.as_secs_f64() * 1e9 / 128.0, d.as_secs_f64() * 1e9 / 128.0, 2.867e6 / pk);
    for n in [128, 512, 2048] { step(n, pk) }
}
fn step(n: usize, _pk: f64) {
    let config = &ModelConfig { kind: ModelKind::Dlrm, dense_features: 13, fields: 26, embedding_dim: 16, pooling: Pooling::Sum, bottom: &[512, 256, 64, 16], top: &[512, 256], batch_norm: false, batch_norm_momentum: 0.1, dropout: 0.0 };
    let model = Model::new(config).unwrap();
    let stream = Stream::new(1, Purpose::Test(0));
    let s = 26; let rows_max = (n * 20) as u64;
    let mut replica = vec![0.0; model.replica_len()+16]; let sk = replica.as_ptr().align_offset(64); let replica = &mut replica[sk..sk+model.replica_len()];
    model.initialize(1, replica);
    let replica = shared(replica);
    let rows = vec![0.01; rows_max as usize * 16];
    let dense: Vec<f32> = (0..(n * 13) as u64).map(|i| stream.uniform(i)).collect();
    let label: Vec<f32> = (0..n as u64).map(|i| stream.below(i, 2) as f32).collect();
    let slot: Vec<u32> = (0..(n * s) as u64).map(|i| stream.below(i, rows_max) as u32).collect();
    let offsets: Vec<u32> = (0..=(n * s) as u32).collect();
    let row: Vec<u64> = (0..n as u64).collect();
    let batch = Batch { label: &label, weight: &[], dense: &dense, bags: Jagged { values: &slot, offsets: &offsets }, row: &row };
    let input = Input { batch, rows: &rows, slot: &slot };
    let mut single = vec![0.0; model.workspace_len(n, rows_max as usize)];
    let mut double = vec![0.0; model.workspace_f64_len()];
    let mut parameters = vec![0.0; model.parameters_len()+16]; let sk = parameters.as_ptr().align_offset(64); let parameters = &mut parameters[sk..sk+model.parameters_len()];
    let mut d_rows = vec![0.0; rows.len()];
    let mut ws = Workspace { single: &mut single, double: &mut double };
    let sgd = umbra_core::optim::Optimizer { kind: umbra_core::optim::OptimizerKind::Sgd, weight_decay: 0.0 };
    let ada = umbra_core::optim::Optimizer { kind: umbra_core::optim::OptimizerKind::Adagrad { eps: 1e-8, initial: 0.0 }, weight_decay: 0.0 };
    let size = umbra_core::optim::StepSize { rate: 1e-9, count: 1 };
    let mut state = vec![0.0; model.parameters_len()+16]; let sk = state.as_ptr().align_offset(64); let state = shared(&mut state[sk..sk+model.parameters_len()]);
    let mut go = |update: u32| { let up = match update { 2 => Some(umbra_core::dense::replica::Update::new(&sgd, size, replica, &[])), 3 => Some(umbra_core::dense::replica::Update::new(&ada, size, replica, state)), _ => None };
        let mut out = Gradients { parameters, update: up, rows: &mut d_rows, statistics: &mut [] };
        model.train_step(replica, &input, StepKey { seed: 1, step: 1 }, &mut |_| {}, &mut ws, &mut out);
        if update == 1 { umbra_core::dense::replica::update(&sgd, size, replica, &[], parameters); } };
    for update in [0, 1, 2, 3] { let t = best(|| go(update)); let pk = peak();
    println!("n {n} update {update}: {:.0} ex/s, {:.1}% of the floor at {pk:.1}", n as f64 / t.as_secs_f64(), n as f64 / t.as_secs_f64() * 2.867e6 / pk / 1e9 * 100.0); }
}
