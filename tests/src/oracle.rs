//! Metrics and sums in the most naive way: what fast and distributed code is compared with.

/// An example with its score.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// Logit.
    pub score: f32,
    /// 0 to 1.
    pub label: f32,
    /// 0 or more.
    pub weight: f32,
    /// For the grouped AUC.
    pub group: u64,
}

/// Figures by definition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OracleFigures {
    /// Area under the ROC curve; `None` with one class.
    pub auc: Option<f64>,
    /// Mean cross entropy, nats.
    pub logloss: f64,
    /// Mean prediction over mean label.
    pub calibration: f64,
    /// Log loss over the entropy of the base rate.
    pub normalized_entropy: f64,
    /// AUC within groups of both classes, weighted by their examples.
    pub gauc: Option<f64>,
}

/// Figures of `examples` by their definitions, O(n²).
#[must_use]
pub fn figures(examples: &[Example]) -> OracleFigures {
    let all: Vec<&Example> = examples.iter().collect();
    let sum = |of: fn(&Example) -> f64| examples.iter().map(of).sum::<f64>();
    let weight = sum(|x| f64::from(x.weight));
    let clicks = sum(|x| f64::from(x.weight) * f64::from(x.label));
    let logloss = sum(|x| {
        let (p, y) = (probability(x), f64::from(x.label));
        -f64::from(x.weight) * (y * p.ln() + (1.0 - y) * (1.0 - p).ln())
    }) / weight;
    let rate = clicks / weight;
    let mut groups: Vec<u64> = examples.iter().map(|x| x.group).collect();
    groups.sort_unstable();
    groups.dedup();
    let (mut total, mut of) = (0.0, 0.0);
    for group in groups {
        let members: Vec<&Example> = examples.iter().filter(|x| x.group == group).collect();
        if let Some(auc) = auc(&members) {
            let weight: f64 = members.iter().map(|x| f64::from(x.weight)).sum();
            total += weight * auc;
            of += weight;
        }
    }
    OracleFigures {
        auc: auc(&all),
        logloss,
        calibration: sum(|x| f64::from(x.weight) * probability(x)) / clicks,
        normalized_entropy: logloss / -(rate * rate.ln() + (1.0 - rate) * (1.0 - rate).ln()),
        gauc: (of > 0.0).then(|| total / of),
    }
}

fn probability(x: &Example) -> f64 {
    1.0 / (1.0 + (-f64::from(x.score)).exp())
}

/// Share of the pairs of a positive and a negative that are in order, ties one half.
fn auc(examples: &[&Example]) -> Option<f64> {
    let (mut right, mut pairs) = (0.0, 0.0);
    for a in examples {
        for b in examples {
            let positive = f64::from(a.weight) * f64::from(a.label);
            let negative = f64::from(b.weight) * (1.0 - f64::from(b.label));
            let order = match a.score.partial_cmp(&b.score).unwrap() {
                core::cmp::Ordering::Greater => 1.0,
                core::cmp::Ordering::Equal => 0.5,
                core::cmp::Ordering::Less => 0.0,
            };
            right += order * positive * negative;
            pairs += positive * negative;
        }
    }
    (pairs > 0.0).then(|| right / pairs)
}

/// The sum of `items` as a balanced tree: halves at the greatest power of two below the count.
#[must_use]
pub fn tree_sum<T: Copy + core::ops::Add<Output = T>>(items: &[T]) -> T {
    match items {
        [one] => *one,
        _ => {
            let (left, right) = items.split_at(items.len().next_power_of_two() / 2);
            tree_sum(left) + tree_sum(right)
        }
    }
}
