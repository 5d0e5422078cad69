//! The job files that ship are jobs: every key known, every value in range. The scripts that ship
//! are scripts, and stand alone. What is generated of the table of keys, the page and the schema in
//! `docs/`, is that of the table; the schema takes every job that lies here, and refuses what the
//! program refuses.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use umbra_mpi::config::{Config, reference};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn shipped() -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(root().join("hpc/jobs")).unwrap().map(|entry| entry.unwrap().path())
}

#[test]
fn every_job_file_is_a_configuration() {
    let mut read = 0;
    for path in shipped() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Schemas of csv files lie beside the jobs; `prepare`'s tests read them.
        if name.ends_with(".toml") && !name.ends_with(".schema.toml") {
            if let Err(error) = Config::load(Some(&path), &[]) {
                panic!("{}: {error}", path.display());
            }
            read += 1;
        }
    }
    assert!(read >= 3, "{read} job files found");
}

/// `make test-slurm` runs them; this is what can be seen without a Slurm.
#[test]
fn every_script_stands_alone() {
    let mut read = 0;
    for path in shipped().filter(|path| path.extension().is_some_and(|end| end == "sbatch")) {
        let parsed = Command::new("bash").arg("-n").arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&parsed.stderr).into_owned();
        assert!(parsed.status.success(), "{}: {said}", path.display());
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.starts_with('#'));
        for line in code {
            let strange =
                ["hpc/", "target/", ". /", "source "].iter().any(|mark| line.contains(mark));
            assert!(!strange, "{} needs the checkout: {line}", path.display());
        }
        assert!(text.contains("umbra=${UMBRA:-umbra}\n"), "{}", path.display());
        read += 1;
    }
    assert!(read >= 5, "{read} scripts found");
}

/// Fails if a file is not what the program would write, and says how to mend it.
fn is_fresh(path: &str, what: &str, text: &str) {
    let written = std::fs::read_to_string(root().join(path)).unwrap_or_default();
    let mend = format!("cargo run -p umbra-mpi --bin umbra -- reference {what} > {path}");
    assert!(written == text, "{path} is stale: the keys have changed. Write it anew:\n    {mend}");
}

#[test]
fn the_page_of_keys_is_that_of_the_table() {
    is_fresh("docs/configuration.md", "keys", &reference::page());
}

#[test]
fn the_schema_is_that_of_the_table() {
    is_fresh("docs/umbra.schema.json", "schema", &reference::schema());
}

/// What of `value` the schema refuses, with its place. Keywords that are not known here fail.
fn refused(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = vec![];
    let keywords = schema.as_object().unwrap();
    for (keyword, says) in keywords {
        let fits = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" => true,
            "type" => match says.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "number" => value.is_number(),
                "integer" => value.is_i64() || value.is_u64(),
                other => panic!("type {other}"),
            },
            "enum" => says.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|x| x >= says.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|x| x <= says.as_f64().unwrap()),
            "exclusiveMinimum" => value.as_f64().is_none_or(|x| x > says.as_f64().unwrap()),
            "exclusiveMaximum" => value.as_f64().is_none_or(|x| x < says.as_f64().unwrap()),
            "minLength" => {
                let least = says.as_u64().unwrap();
                value.as_str().is_none_or(|text| text.chars().count() as u64 >= least)
            }
            "pattern" => {
                let pattern = regex::Regex::new(says.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "maxItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 <= says.as_u64().unwrap())
            }
            "minItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 >= says.as_u64().unwrap())
            }
            "items" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    found.extend(refused(says, item, &format!("{at}[{number}]")));
                }
                true
            }
            "anyOf" => {
                let schemas = says.as_array().unwrap();
                schemas.iter().any(|schema| refused(schema, value, at).is_empty())
            }
            "required" => says.as_array().unwrap().iter().all(|name| {
                value.as_object().is_none_or(|it| it.contains_key(name.as_str().unwrap()))
            }),
            "properties" => {
                for (name, below) in value.as_object().into_iter().flatten() {
                    if let Some(schema) = says.get(name) {
                        found.extend(refused(schema, below, &format!("{at}.{name}")));
                    }
                }
                true
            }
            "additionalProperties" => {
                assert_eq!(says, &json!(false));
                let known = keywords["properties"].as_object().unwrap();
                let mut names = value.as_object().into_iter().flat_map(|it| it.keys());
                names.all(|name| known.contains_key(name))
            }
            other => panic!("keyword {other}"),
        };
        if !fits {
            found.push(format!("{at}: {keyword} {says}, and it is {value}"));
        }
    }
    found
}

fn as_json(toml: &str) -> Value {
    let table: toml::Table = toml.parse().unwrap_or_else(|error| panic!("{error}\n{toml}"));
    serde_json::to_value(table).unwrap()
}

fn schema() -> Value {
    serde_json::from_str(&reference::schema()).unwrap()
}

/// Files below a folder with this ending, those that are built left out.
fn files(folder: &Path, ending: &str, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            files(&path, ending, into);
        } else if name.ends_with(ending) {
            into.push(path);
        }
    }
}

/// Blocks of TOML in a page that are of a job: all their keys stand in sections of one.
fn jobs(page: &str) -> Vec<String> {
    let schema = schema();
    let known = schema["properties"].as_object().unwrap();
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let here = page.split("job.toml <<'END'\n").skip(1).filter_map(|it| it.split("\nEND").next());
    let is_job = |text: &&str| {
        let table = as_json(text);
        table.as_object().unwrap().keys().all(|key| known.contains_key(key))
    };
    blocks.chain(here).filter(is_job).map(ToOwned::to_owned).collect()
}

#[test]
fn the_schema_takes_every_job() {
    let schema = schema();
    let mut texts = vec![];
    let mut paths = vec![];
    files(&root().join("hpc"), ".toml", &mut paths);
    // Beside them lie schemas of csv files.
    paths.retain(|path| !path.to_string_lossy().ends_with(".schema.toml"));
    assert!(paths.len() >= 12, "{paths:?}");
    for path in paths {
        texts.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
    }
    let mut pages = vec![root().join("README.md")];
    files(&root().join("docs"), ".md", &mut pages);
    let mut blocks = 0;
    for path in pages {
        for job in jobs(&std::fs::read_to_string(&path).unwrap()) {
            blocks += 1;
            texts.push((path.display().to_string(), job));
        }
    }
    assert!(blocks >= 7, "{blocks} blocks of TOML in the documents are jobs");
    for (place, text) in texts {
        let found = refused(&schema, &as_json(&text), "");
        assert!(found.is_empty(), "{place}: {}\n{text}", found.join("\n"));
    }
}

/// The schema and the program agree on single values.
#[test]
fn the_schema_refuses_what_the_program_refuses() {
    let schema = schema();
    let least = "data.train = \"a.h5\"\nmodel.kind = \"dlrm\"\n";
    for (line, taken) in [
        ("train.batch_size = 0", false),
        ("train.batch_size = 64", true),
        ("train.batch_size = 2.5", false),
        ("optim.dense.lr = 0", false),
        ("optim.dense.lr = 1", true),
        ("optim.dense.kind = \"rowwise_adagrad\"", false),
        ("optim.sparse.kind = \"rowwise_adagrad\"", true),
        ("model.dropout = 1.0", false),
        ("model.dropout = 0.5", true),
        ("model.top = [64, 0]", false),
        ("model.top = []", true),
        ("model.topp = [64]", false),
        ("data.valid = [\"a\", \"b\"]", true),
        ("data.valid = \"\"", false),
        ("data.shuffle = 1", false),
        ("run.dir = \"\"", false),
        ("run.max_time = \"55 min\"", true),
        ("run.max_time = \"5 days\"", false),
        ("checkpoint.every = \"1000000 examples\"", true),
        ("checkpoint.every = \"1.5 steps\"", false),
        ("checkpoint.every = \"1.5 h\"", true),
        ("checkpoint.every = 0", false),
        ("sync.method = \"async\"", false),
        ("recovery.inject.stop_step = 4", true),
        ("steps = 4", false),
    ] {
        let text = format!("{least}{line}\n");
        let found = refused(&schema, &as_json(&text), "");
        assert_eq!(found.is_empty(), taken, "{line}: {found:?}");
        let job = Config::parse(&text, Path::new("job.toml"), &[]);
        assert_eq!(job.is_ok(), taken, "{line}: {:?}", job.err());
    }
    let missing = refused(&schema, &as_json("train.early_stop.metric = \"auc\"\n"), "");
    assert!(missing.iter().any(|text| text.contains("patience")), "{missing:?}");
}
