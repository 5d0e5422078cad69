//! Prepares many small splits, each in its own way, and asks of every ordered pair whether a model
//! of the first can score the second.
//!
//!     cargo run --release -p umbra-datasets --example pairs -- FOLDER
//!
//! Splits belong together when their ids and features mean the same: prepared with one vocabulary,
//! or hashed alike; also when the same text was counted twice in the same way. Whatever the file,
//! the labels or the rows: they do not when anything else differs. Prints what was decided wrongly,
//! then `id value` lines.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use umbra_datasets::Dataset;
use umbra_datasets::prepare::{DenseTransform, Fields, Format, PrepareOptions, prepare};

/// A split, and what its ids and features mean, in words that are equal for splits that belong
/// together.
struct Split {
    name: String,
    meaning: String,
    path: PathBuf,
}

/// Sets an option.
type Change = fn(&mut PrepareOptions);

struct Splits {
    folder: PathBuf,
    all: Vec<Split>,
}

impl Splits {
    /// Prepares `text`; `change` sets what is not as usual. Its ids mean `meaning`.
    fn add(
        &mut self,
        (format, text): (Format, &str),
        meaning: &str,
        change: impl FnOnce(&mut PrepareOptions),
    ) -> PathBuf {
        let name = format!("{:03}-{}", self.all.len(), meaning.replace([' ', ',', ':'], "-"));
        let input = self.folder.join(format!("{name}.txt"));
        fs::write(&input, text).unwrap();
        let path = self.folder.join(format!("{name}.h5"));
        let mut options = PrepareOptions::new(format, vec![input], path.clone());
        options.threads = Some(1);
        options.overwrite = true;
        change(&mut options);
        prepare(&options, &mut |_| ()).unwrap_or_else(|error| panic!("{name}: {error}"));
        self.all.push(Split { name, meaning: meaning.to_owned(), path: path.clone() });
        path
    }

    fn schema(&self, name: &str, text: &str) -> Option<PathBuf> {
        let path = self.folder.join(format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        Some(path)
    }

    /// Adds what all formats have: counted twice, with thresholds, limits and buckets, others'
    /// vocabularies, grown ones, hashes.
    fn family(
        &mut self,
        format: Format,
        texts: [&str; 3],
        name: &str,
        usual: &dyn Fn(&mut PrepareOptions),
    ) {
        let [one, two, three] = texts.map(|text| (format, text));
        let mut made = Vec::new();
        for (number, text) in [one, two, three].into_iter().enumerate() {
            made.push(self.add(text, &format!("{name} counted {number}"), usual));
        }
        self.add(one, &format!("{name} counted 0"), usual);
        for (number, path) in made.iter().enumerate() {
            for text in [one, two, three] {
                self.add(text, &format!("{name} counted {number}"), |options| {
                    usual(options);
                    options.vocabulary_from = Some(path.clone());
                });
            }
        }
        let rules: [(&str, Change); 3] = [
            ("from 2", |options| options.min_count = 2),
            ("at most 2", |options| options.cap = Some(2)),
            ("in buckets", |options| options.oov_buckets = Some(3)),
        ];
        for (rule, set) in rules {
            for (number, text) in [one, two].into_iter().enumerate() {
                let meaning = format!("{name} counted {number} {rule}");
                let path = self.add(text, &meaning, |options| {
                    usual(options);
                    set(options);
                });
                self.add(three, &meaning, |options| {
                    usual(options);
                    options.vocabulary_from = Some(path.clone());
                });
            }
        }
        let grown = self.add(two, &format!("{name} grown"), |options| {
            usual(options);
            options.vocabulary_from = Some(made[0].clone());
            options.grow = true;
        });
        self.add(three, &format!("{name} grown"), |options| {
            usual(options);
            options.vocabulary_from = Some(grown.clone());
        });
        for (size, salt) in [(97, None), (98, None), (97, Some(5))] {
            for text in [one, two] {
                let salted = salt.map(|salt| format!(" with salt {salt}")).unwrap_or_default();
                self.add(text, &format!("{name} hashed {size}{salted}"), |options| {
                    usual(options);
                    options.hash_size = Some(size);
                    options.salt = salt;
                });
            }
        }
    }
}

fn main() {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("expected FOLDER"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut splits = Splits { folder, all: Vec::new() };
    criteo(&mut splits);
    libfm(&mut splits);
    csv(&mut splits);

    let open = |split: &Split| Dataset::open(core::slice::from_ref(&split.path)).unwrap();
    let opened: Vec<Dataset> = splits.all.iter().map(open).collect();
    let (mut tried, mut together, mut wrong) = (0u64, 0u64, 0u64);
    for (one, trained) in splits.all.iter().zip(&opened) {
        for (other, scored) in splits.all.iter().zip(&opened) {
            let belongs = one.meaning == other.meaning;
            let answer = trained.check_compatible(scored);
            tried += 1;
            together += u64::from(belongs);
            // Refusals name both files.
            let said = answer.as_ref().err().map(ToString::to_string);
            let named = said.as_ref().is_none_or(|said| {
                [one, other].iter().all(|split| said.contains(&split.path.display().to_string()))
            });
            if answer.is_ok() != belongs || !named {
                wrong += 1;
                println!("{} with {}: {}", one.name, other.name, said.unwrap_or_default());
            }
        }
    }
    println!("splits {}", splits.all.len());
    println!("pairs_tried {tried}");
    println!("pairs_together {together}");
    println!("pairs_wrong {wrong}");
}

fn criteo(splits: &mut Splits) {
    let text = |salt: u64| -> String {
        let row = |row: u64| {
            let numbers: String = (0..13).map(|c| format!("\t{}", (row * salt + c) % 9)).collect();
            let id = |c: u64| format!("\t{:08x}", (row * salt + c * c) % (3 + salt));
            format!("{}{numbers}{}\n", row % 2, (0..26).map(id).collect::<String>())
        };
        (0..40).map(row).collect()
    };
    let texts = [text(3), text(5), text(11)];
    let texts = texts.each_ref().map(String::as_str);
    splits.family(Format::Criteo, texts, "criteo", &|_| ());
    splits.family(Format::Criteo, texts, "criteo without logarithms", &|options| {
        options.dense_transform = Some(DenseTransform::None);
    });
}

fn libfm(splits: &mut Splits) {
    let text = |salt: u64| -> String {
        // The most frequent keys are others in each text.
        let row =
            |row: u64| format!("{} {}:1 {}:1\n", row % 2, row * salt % 7, 10 * salt + row % salt);
        (0..40).map(row).collect()
    };
    let texts = [text(3), text(4), text(5)];
    let texts = texts.each_ref().map(String::as_str);
    splits.family(Format::Libfm, texts, "libfm", &|_| ());
    splits.family(Format::Libfm, texts, "libfm in bags", &|options| {
        options.fields = Some(Fields::Bag);
    });
}

fn csv(splits: &mut Splits) {
    let text = |salt: u64| -> String {
        let row = |row: u64| {
            // Each text has an item that the one before has not, and others are frequent.
            let item = row * salt % 7 + salt;
            format!("{},{}, k{item},{},u{}\n", row % 2, row % 11, row % salt, row % 5)
        };
        format!("click,price,item,shop,user\n{}", (0..40).map(row).collect::<String>())
    };
    let texts = [text(3), text(4), text(5)];
    let texts = texts.each_ref().map(String::as_str);
    // What is not said to be the same is not.
    let (price, both) = ("'price'", "'item', 'shop'");
    let bags = "{ column = 'item', separator = 'k' }, 'shop'";
    let schemas = [
        ("plain", "", price, both),
        ("trimmed", "trim = true", price, both),
        ("log", "dense_transform = 'log'", price, both),
        ("swapped", "", price, "'shop', 'item'"),
        ("other", "", price, "'item', 'user'"),
        ("fewer", "", price, "'item'"),
        ("no numbers", "", "", both),
        ("missing", "missing = [' k1']", price, both),
        ("bags", "", price, bags),
        ("flagged", "", "{ column = 'price', missing_flag = true }", both),
        ("clipped", "", "{ column = 'price', clip = [0, 5] }", both),
        ("crossed", "cross = [['item', 'shop']]", price, both),
        ("label", "label_at_least = 1", price, both),
    ];
    for (name, more, dense, sparse) in schemas {
        let text = format!("label = 'click'\n{more}\ndense = [{dense}]\nsparse = [{sparse}]");
        let schema = splits.schema(name, &text);
        splits.family(Format::Csv, texts, &format!("csv {name}"), &|options| {
            options.schema.clone_from(&schema);
        });
    }
    // Weights, groups and the delimiter mean nothing to ids and features.
    let same = "label = 'click'\ndense = ['price']\nsparse = ['item', 'shop']\nweight = 'price'";
    let schema = splits.schema("weighted", &format!("{same}\ngroup = ['user']\ndelimiter = ';'"));
    let semicolons = texts[1].replace(',', ";");
    splits.add((Format::Csv, &semicolons), "csv plain hashed 97", |options| {
        options.schema.clone_from(&schema);
        options.hash_size = Some(97);
    });
}
