//! What a run was set to, for TensorBoard's table of hyperparameters.
//!
//! Three events say it (tensorboard/plugins/hparams/summary_v2.py): what is compared
//! (`_hparams_/experiment`), what this run was set to (`_hparams_/session_start_info`) and how it
//! ended (`_hparams_/session_end_info`). Each is a value with a tensor of one 0 and, in its
//! metadata, the data of the plugin (`hparams/plugin_data.proto`):
//!
//! ```text
//! Value { string tag = 1; TensorProto tensor = 8; SummaryMetadata metadata = 9 }
//! SummaryMetadata { PluginData plugin_data = 1 { string plugin_name = 1; bytes content = 2 } }
//! TensorProto { DataType dtype = 1; TensorShapeProto tensor_shape = 2;
//!     repeated float float_val = 5 }
//! HParamsPluginData { int32 version = 1; Experiment experiment = 2;
//!     SessionStartInfo session_start_info = 3; SessionEndInfo session_end_info = 4 }
//! Experiment { repeated HParamInfo hparam_infos = 4 { string name = 1; DataType type = 4 };
//!     repeated MetricInfo metric_infos = 5 { MetricName name = 1 { string tag = 2 } } }
//! SessionStartInfo { map<string, google.protobuf.Value> hparams = 1; string group_name = 4;
//!     double start_time_secs = 5 }
//! SessionEndInfo { Status status = 1; double end_time_secs = 2 }
//! google.protobuf.Value { double number_value = 2; string string_value = 3; bool bool_value = 4 }
//! ```

use super::config_toml;
use super::tensorboard::{EventWriter, bytes, double, event_with, number};
use crate::config::Config;
use crate::error::Error;

/// A hyperparameter's value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Setting {
    Text(String),
    Switch(bool),
    Number(f64),
}

/// What shapes the model that a run ends with: keys of its configuration and their values.
///
/// # Errors
/// A configuration that cannot be written as TOML.
pub(super) fn hyperparameters(config: &Config) -> Result<Vec<(String, Setting)>, Error> {
    let text = config_toml(config)?;
    let table: toml::Table =
        text.parse().map_err(|error| Error::Failure(format!("configuration as TOML: {error}")))?;
    let mut found = vec![];
    for (section, value) in &table {
        if SECTIONS.contains(&section.as_str()) {
            flatten(section, value, &mut found);
        }
    }
    Ok(found)
}

/// Sections of what is learnt, and how; others say where things are.
const SECTIONS: [&str; 7] = ["seed", "model", "optim", "train", "sync", "compress", "embedding"];

fn flatten(path: &str, value: &toml::Value, into: &mut Vec<(String, Setting)>) {
    let setting = match value {
        toml::Value::Table(table) => {
            let parts = table.iter();
            return parts.for_each(|(key, value)| flatten(&format!("{path}.{key}"), value, into));
        }
        toml::Value::Boolean(is) => Setting::Switch(*is),
        toml::Value::Integer(number) => Setting::Number(*number as f64),
        toml::Value::Float(number) => Setting::Number(*number),
        toml::Value::String(text) => Setting::Text(text.clone()),
        other => Setting::Text(other.to_string()),
    };
    into.push((path.to_owned(), setting));
}

impl EventWriter {
    /// Says what the run `name` was set to.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn begin_session(
        &mut self,
        wall_time: f64,
        name: &str,
        settings: &[(String, Setting)],
    ) -> Result<(), Error> {
        let (mut experiment, mut session) = (vec![], vec![]);
        for (key, setting) in settings {
            let (mut value, kind) = (vec![], setting.kind());
            match setting {
                Setting::Number(number) => double(&mut value, 2, *number),
                Setting::Text(text) => bytes(&mut value, 3, text.as_bytes()),
                Setting::Switch(is) => number(&mut value, 4, u64::from(*is)),
            }
            let (mut entry, mut info) = (vec![], vec![]);
            bytes(&mut entry, 1, key.as_bytes());
            bytes(&mut entry, 2, &value);
            bytes(&mut session, 1, &entry);
            bytes(&mut info, 1, key.as_bytes());
            number(&mut info, 4, kind);
            bytes(&mut experiment, 4, &info);
        }
        for tag in METRICS {
            let (mut metric, mut info) = (vec![], vec![]);
            bytes(&mut metric, 2, tag.as_bytes());
            bytes(&mut info, 1, &metric);
            bytes(&mut experiment, 5, &info);
        }
        bytes(&mut session, 4, name.as_bytes());
        double(&mut session, 5, wall_time);
        self.plugin(wall_time, "_hparams_/experiment", 2, &experiment)?;
        self.plugin(wall_time, "_hparams_/session_start_info", 3, &session)
    }

    /// Says that the run has ended, and whether as it should.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn end_session(&mut self, wall_time: f64, well: bool) -> Result<(), Error> {
        let mut session = vec![];
        number(&mut session, 1, if well { SUCCESS } else { FAILURE });
        double(&mut session, 2, wall_time);
        self.plugin(wall_time, "_hparams_/session_end_info", 4, &session)
    }

    fn plugin(&mut self, wall_time: f64, tag: &str, field: u8, data: &[u8]) -> Result<(), Error> {
        let (mut content, mut plugin, mut metadata) = (vec![], vec![], vec![]);
        // The version of the plugin's data.
        number(&mut content, 1, 0);
        bytes(&mut content, field, data);
        bytes(&mut plugin, 1, b"hparams");
        bytes(&mut plugin, 2, &content);
        bytes(&mut metadata, 1, &plugin);
        let (mut extent, mut shape, mut tensor, mut value) = (vec![], vec![], vec![], vec![]);
        number(&mut extent, 1, 1);
        bytes(&mut shape, 2, &extent);
        number(&mut tensor, 1, DT_FLOAT);
        bytes(&mut tensor, 2, &shape);
        bytes(&mut tensor, 5, &0.0_f32.to_le_bytes());
        bytes(&mut value, 1, tag.as_bytes());
        bytes(&mut value, 8, &tensor);
        bytes(&mut value, 9, &metadata);
        let mut summary = vec![];
        bytes(&mut summary, 1, &value);
        self.record(&event_with(0, wall_time, &summary))
    }
}

impl Setting {
    /// As `hparams/api.proto` numbers its `DataType`.
    const fn kind(&self) -> u64 {
        match self {
            Self::Text(_) => 1,
            Self::Switch(_) => 2,
            Self::Number(_) => 3,
        }
    }
}

/// What runs are compared by.
const METRICS: [&str; 5] =
    ["test/auc", "test/logloss", "valid/auc", "valid/logloss", "train/logloss"];

// Of `hparams/api.proto`.
const SUCCESS: u64 = 1;
const FAILURE: u64 = 2;
/// Of tensorflow/core/framework/types.proto.
const DT_FLOAT: u64 = 1;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::tensorboard::tests::{fields, records};
    use super::*;
    use crate::record::LEAST;

    /// The nested message number `number`, which is there once.
    fn nested(message: &[u8], number: u8) -> &[u8] {
        let found: Vec<&[u8]> = all(message, number).collect();
        assert_eq!(found.len(), 1, "field {number}");
        found[0]
    }

    fn all(message: &[u8], number: u8) -> impl Iterator<Item = &[u8]> {
        let of_number =
            move |(found, _, nested): (u8, Vec<u8>, _)| (found == number).then_some(nested);
        fields(message).into_iter().filter_map(of_number)
    }

    fn double_of(message: &[u8], number: u8) -> f64 {
        let (_, bits, _) = fields(message).into_iter().find(|field| field.0 == number).unwrap();
        f64::from_le_bytes(bits.try_into().unwrap())
    }

    /// Decoded here by a reader written from the formats above. The same file was read once by
    /// TensorBoard 2.21.0, whose hparams plugin gave back the settings, the metrics and the end.
    #[test]
    fn settings_decode_to_what_the_run_was_set_to() {
        let folder = tempfile::tempdir().unwrap();
        let sets = LEAST.map(String::from);
        let config = Config::load(None, &sets).unwrap().resolve(1, 1, 1).unwrap().config;
        let settings = hyperparameters(&config).unwrap();
        let of =
            |key: &str| settings.iter().find(|(known, _)| known == key).map(|(_, it)| it.clone());
        assert_eq!(of("model.kind"), Some(Setting::Text("lr".into())));
        assert_eq!(of("optim.dense.lr"), Some(Setting::Number(1.0)));
        assert_eq!(of("model.batch_norm"), Some(Setting::Switch(false)));
        assert_eq!(of("data.train"), None, "where data are shapes nothing");

        let mut writer = EventWriter::create(folder.path(), "node1", 7.0).unwrap();
        writer.begin_session(8.0, "job", &settings).unwrap();
        writer.end_session(9.0, true).unwrap();
        let path = folder.path().join("events.out.tfevents.0000000007.node1.umbra");
        let file = std::fs::read(path).unwrap();
        let plugins: Vec<(String, Vec<u8>)> = records(&file)[1..]
            .iter()
            .map(|event| {
                let value = nested(nested(event, 5), 1);
                let plugin = nested(nested(value, 9), 1);
                assert_eq!(nested(plugin, 1), b"hparams");
                (String::from_utf8(nested(value, 1).to_vec()).unwrap(), nested(plugin, 2).to_vec())
            })
            .collect();
        let tags: Vec<&str> = plugins.iter().map(|(tag, _)| tag.as_str()).collect();
        let what = ["experiment", "session_start_info", "session_end_info"];
        assert_eq!(tags, what.map(|what| format!("_hparams_/{what}")));

        let experiment = nested(&plugins[0].1, 2);
        assert_eq!(all(experiment, 4).count(), settings.len());
        let metrics: Vec<&[u8]> = all(experiment, 5).map(|it| nested(nested(it, 1), 2)).collect();
        assert_eq!(metrics, METRICS.map(str::as_bytes));
        let session = nested(&plugins[1].1, 3);
        assert_eq!((nested(session, 4), double_of(session, 5)), (&b"job"[..], 8.0));
        let rate = all(session, 1).find(|entry| nested(entry, 1) == b"optim.dense.lr").unwrap();
        assert_eq!(double_of(nested(rate, 2), 2), 1.0);
        let end = nested(&plugins[2].1, 4);
        assert_eq!((double_of(end, 2), fields(end)[0].1[0]), (9.0, 1));
    }
}
