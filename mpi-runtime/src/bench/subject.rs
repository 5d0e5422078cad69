//! What is measured: a model, the shape of its data, and optimizers.

use std::path::Path;

use umbra_core::model::Model;
use umbra_datasets::{Dataset, Preset};

use crate::config::Config;
use crate::config::convert;
use crate::error::Error;

/// Pairs of optimizers that can be measured without a job file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Optimizers {
    /// SGD for dense parameters and rows.
    Sgd,
    /// Row-wise Adagrad for rows, Adagrad for dense parameters.
    RowwiseAdagrad,
}

/// Models that can be measured without a job file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// The DLRM of Criteo's Kaggle data: bound by arithmetic.
    CriteoKaggle,
    /// A DLRM with the MLPs of MLPerf's, and tables that are near: bound by arithmetic.
    Mlperf,
    /// 26 tables of a million rows of 64, one id for each: bound by rows, as all that follow.
    Rows64,
    /// The same with rows of 128.
    Rows128,
    /// 8 tables of a million rows of 64, bags of 10 ids.
    Bags10,
    /// The same with bags of 50.
    Bags50,
}

/// Operands of products, or values of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Operands {
    /// f32
    F32,
    /// bf16
    Bf16,
}

impl Shape {
    /// Tables, width of their rows and ids of a bag of those that are bound by rows.
    const fn rows(self) -> Option<(usize, usize, usize)> {
        match self {
            Self::CriteoKaggle | Self::Mlperf => None,
            Self::Rows64 => Some((26, 64, 1)),
            Self::Rows128 => Some((26, 128, 1)),
            Self::Bags10 => Some((8, 64, 10)),
            Self::Bags50 => Some((8, 64, 50)),
        }
    }
}

/// A configuration under the name of its optimizers.
pub struct Variant {
    /// Of the rows' optimizer; `rows+dense` where they differ and a job file chose them.
    pub name: String,
    /// The job.
    pub config: Config,
}

/// What is measured.
pub struct Subject {
    /// `criteo-kaggle`, or the name of the job file or of the data.
    pub name: String,
    /// The model; the variants have the same.
    pub model: Model,
    /// Ids of every field. `[S]`
    pub cardinality: Vec<u64>,
    /// D
    pub dense_features: usize,
    /// Ids of a field, where batches are made up.
    pub bag: usize,
    /// Batches are made from it, and read from it; without one they are made up.
    pub data: Option<Dataset>,
    /// The same with different optimizers.
    pub variants: Vec<Variant>,
}

impl Subject {
    /// The DLRM of `umbra synth --preset criteo-kaggle`, or the same layers on `data`.
    ///
    /// # Errors
    /// Data that can't be read or has no features to make a model of.
    pub fn criteo_kaggle(ways: &[Way], data: Option<&Path>) -> Result<Self, Error> {
        let variants = Self::variants(JOB, NAME, ways)?;
        let Some(path) = data else {
            let preset = Preset::CriteoKaggle;
            let shape = (preset.cardinality().to_vec(), preset.dense_features());
            return Self::new(NAME.into(), shape, None, variants);
        };
        let data = Dataset::open(&[path.into()])?;
        let kaggle = data.cardinality() == Preset::CriteoKaggle.cardinality();
        let name = if kaggle { NAME.into() } else { stem(path) };
        Self::of_data(name, data, variants, false)
    }

    /// A model of this shape on made-up data.
    ///
    /// # Errors
    /// None that is not a defect of this program.
    pub fn of_shape(shape: Shape, ways: &[Way]) -> Result<Self, Error> {
        let name = clap::ValueEnum::to_possible_value(&shape);
        let name = name.map_or_else(String::new, |name| name.get_name().to_owned());
        let Some((tables, width, bag)) = shape.rows() else {
            if shape == Shape::CriteoKaggle {
                return Self::criteo_kaggle(ways, None);
            }
            let variants = Self::variants(&mlperf(), &name, ways)?;
            return Self::new(name, (vec![NEAR; 26], 13), None, variants);
        };
        // The least that a DLRM can be: rows are what takes its time.
        let job = JOB
            .replace("embedding_dim = 16", &format!("embedding_dim = {width}"))
            .replace("bottom = [512, 256, 64, 16]", &format!("bottom = [{width}]"))
            .replace("top = [512, 256]", "top = [16]");
        let variants = Self::variants(&job, &name, ways)?;
        let subject = Self::new(name, (vec![1_000_000; tables], 13), None, variants)?;
        Ok(Self { bag, ..subject })
    }

    fn variants(job: &str, name: &str, ways: &[Way]) -> Result<Vec<Variant>, Error> {
        let configs = ways.iter().map(|(optimizers, operands, rows)| {
            let (own, kinds) = match optimizers {
                Optimizers::Sgd => ("sgd", ["sgd", "sgd"]),
                Optimizers::RowwiseAdagrad => ("rowwise_adagrad", ["adagrad", "rowwise_adagrad"]),
            };
            let (own, precision) = match operands {
                Operands::F32 => (own.to_owned(), "f32"),
                Operands::Bf16 => (format!("{own} bf16"), "bf16"),
            };
            let (own, rows) = match rows {
                Operands::F32 => (own, "f32"),
                Operands::Bf16 => (format!("{own}, bf16 rows"), "bf16"),
            };
            let [dense, sparse] = kinds;
            let sets = [
                format!("optim.dense.kind={dense}"),
                format!("optim.sparse.kind={sparse}"),
                format!("train.precision={precision}"),
                format!("embedding.precision={rows}"),
            ];
            Ok(Variant { name: own, config: Config::parse(job, Path::new(name), &sets)? })
        });
        configs.collect()
    }

    /// The model and optimizers of a job file on `data`, else on the shape of its own training
    /// data.
    ///
    /// # Errors
    /// As the configuration of `umbra train`; data that can't be read or does not fit the model.
    pub fn of_job(path: &Path, data: Option<&Path>) -> Result<Self, Error> {
        let config = Config::load(Some(path), &[])?;
        let kind = |kind| serde_json::to_value(kind).ok()?.as_str().map(str::to_owned);
        let (sparse, dense) = (kind(config.optim.sparse.kind), kind(config.optim.dense.kind));
        let (sparse, dense) = (sparse.unwrap_or_default(), dense.unwrap_or_default());
        let name = if sparse == dense { sparse } else { format!("{sparse}+{dense}") };
        let files = data.map_or_else(|| config.data.train.clone(), |path| vec![path.into()]);
        let opened = Dataset::open(&files)?;
        Self::of_data(stem(path), opened, vec![Variant { name, config }], data.is_none())
    }

    fn of_data(
        name: String,
        data: Dataset,
        variants: Vec<Variant>,
        shape_only: bool,
    ) -> Result<Self, Error> {
        let shape = (data.cardinality().to_vec(), data.dense_features());
        Self::new(name, shape, (!shape_only).then_some(data), variants)
    }

    fn new(
        name: String,
        (cardinality, dense_features): (Vec<u64>, usize),
        data: Option<Dataset>,
        variants: Vec<Variant>,
    ) -> Result<Self, Error> {
        let Some(Variant { config, .. }) = variants.first() else {
            return Err(Error::Usage("--optimizer: expected at least one".into()));
        };
        if !config.embedding.dims.is_empty() || config.embedding.columns > 0 {
            return Err(Error::Usage(
                "embedding.dims, embedding.columns: steps on tables that are cut into strips are \
                 not measured; expected a job without them"
                    .into(),
            ));
        }
        let model = convert::model(&config.model, dense_features, cardinality.len())
            .map_err(|error| Error::Usage(format!("the model on this data: {error}")))?;
        Ok(Self { name, model, cardinality, dense_features, bag: 1, data, variants })
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

const NAME: &str = "criteo-kaggle";

/// Optimizers, and what products multiply.
pub type Way = (Optimizers, Operands, Operands);

/// Rows of a table of [`Shape::Mlperf`]: what rows cost is not the question there.
const NEAR: u64 = 10_000;

/// The MLPs of MLPerf Training's DLRM, v0.7: 13-512-256-128 and 479-1024-1024-512-256-1.
fn mlperf() -> String {
    JOB.replace("embedding_dim = 16", "embedding_dim = 128")
        .replace("bottom = [512, 256, 64, 16]", "bottom = [512, 256, 128]")
        .replace("top = [512, 256]", "top = [1024, 1024, 512, 256]")
}

/// Naumov et al., arXiv 1906.00091: the layers of the reference program's Kaggle script.
const JOB: &str = r#"
[data]
train = "unused.h5"
[model]
kind = "dlrm"
embedding_dim = 16
bottom = [512, 256, 64, 16]
top = [512, 256]
[optim.dense]
lr = 0.01
[optim.sparse]
lr = 0.01
"#;
