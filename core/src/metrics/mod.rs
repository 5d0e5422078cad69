//! How good the predictions are, and how that is known of a whole run.
//!
//! - [`auc`]: the exact area under the ROC curve, and the order of scores it rests on.
//! - [`gauc`]: the same inside every group (a user, a session), averaged.
//! - [`loss`]: log loss, normalized entropy, calibration.
//!
//! All three are sums that merge, so ranks compute their parts alone. Everything is f64 from the
//! f32 logits on; nothing is sampled or binned. Ranking by logit equals ranking by probability
//! (the sigmoid is monotone) and keeps apart the logits whose probabilities round to one value.

pub mod auc;
pub mod gauc;
pub mod loss;

pub use auc::{AucPart, MetricError, Scored, order_key};
pub use gauc::{GaucPart, Grouped};
pub use loss::LossSums;
