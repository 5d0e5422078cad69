//! Conversations and tables as they were (`tests/golden/`), byte for byte.

use core::fmt::Write as _;
use std::path::PathBuf;

use umbra_core::sim::lines;

use super::*;

/// Compares with a golden file.
fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("UMBRA_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    let body = expected.lines().filter(|line| !line.starts_with('#'));
    let got = text.lines().filter(|line| !line.starts_with('#'));
    for (number, (expected, got)) in body.clone().zip(got.clone()).enumerate() {
        assert_eq!(expected, got, "{name}, line {number} that is no comment");
    }
    assert_eq!(body.count(), got.count(), "{name}: lines");
}

#[test]
fn conversations_are_as_they_were() {
    let run = |trainers, algorithm, rounds, bytes| {
        let mut cluster = cluster(trainers, 2);
        cluster.trainers[1].slowdown = 1.25;
        let method = Job { replica_bytes: bytes, ..method(algorithm, rounds) };
        lines(&time(&cluster, &method, true).trace)
    };
    let text = run(2, EASGD, SHADOW, 500_000);
    golden(
        "easgd_two_trainers_and_a_center.txt",
        &headed("2 trainers (instances 0, 1) and a center (2)", &text),
    );
    let text = run(3, MA, SHADOW, 300_000);
    golden("ma_three_ranks.txt", &headed("3 trainers average in the background", &text));
    let text = run(3, MA, gated(1), 300_000);
    golden(
        "ma_three_ranks_gated.txt",
        &headed("3 trainers average after every step, gated", &text),
    );
}

fn headed(title: &str, text: &str) -> String {
    format!(
        "# {title}. Made by tests/tests/simulator.rs with UMBRA_BLESS=1; compared exactly.\n\
         # begin ns, end ns, who: what\n{text}"
    )
}

/// Throughput and gaps over trainers, bandwidth and method: 5 ms steps of 4 workers, a replica of
/// 10 MB.
#[test]
fn the_table_of_methods_is_as_it_was() {
    let methods: [(&str, Algorithm<'_>, Rounds); 5] = [
        ("none", Algorithm::None, SHADOW),
        ("shadow_easgd", EASGD, SHADOW),
        ("shadow_ma", MA, SHADOW),
        ("foreground_easgd", EASGD, gated(5)),
        ("foreground_ma", MA, gated(5)),
    ];
    let mut text = String::from(
        "# Made by tests/tests/simulator.rs with UMBRA_BLESS=1; compared exactly. 4 workers of \
         5 ms steps,\n\
         # log-normal jitter of 10 %, 200 steps each; a replica of 10 MB; one sync PS; seed 1.\n\
         method            GB/s trainers   steps/s efficiency   gap mean    gap p99  exposed s\n",
    );
    for (name, algorithm, rounds) in methods {
        for gigabytes in [0.1, 1.0, 10.0] {
            let mut alone = 0.0;
            for trainers in [1usize, 4, 16, 64] {
                let mut cluster = cluster(trainers, 200);
                cluster.jitter = Jitter::LogNormal(0.1);
                let link = Link { bytes_per_second: gigabytes * 1e9, ..cluster.sync_ps[0] };
                cluster.sync_ps = vec![link];
                for trainer in &mut cluster.trainers {
                    (trainer.workers, trainer.compute, trainer.link) = (4, Nanos(5 * MS), link);
                }
                let method = Job { replica_bytes: 10_000_000, ..method(algorithm, rounds) };
                let outcome = timing(&cluster, &method);
                let speed = outcome.steps_per_second();
                if trainers == 1 {
                    alone = speed;
                }
                let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.2}"));
                writeln!(
                    text,
                    "{name:16} {gigabytes:5} {trainers:8} {speed:9.1} \
                     {:10.3} {:>10} {:>10} {:10.3}",
                    speed / alone / trainers as f64,
                    number(outcome.gap_mean()),
                    number(outcome.gap_p99),
                    outcome.mean(|trainer| trainer.exposed_seconds),
                )
                .unwrap();
            }
        }
    }
    golden("methods.txt", &text);
}
