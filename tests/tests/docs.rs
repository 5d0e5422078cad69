//! What README.md and docs/ say exists: verbs, flags, keys, make targets, files, pages, headings.
//!
//! Nothing is run but `--help`: that a block does what it says is for `make test-docs`
//! (`tests/blocks/run.py`, whose rules about blocks are in `tests/blocks/blocks.py`). A failure
//! names the document and line to mend.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use umbra_tests::{LIMIT, program, start};

const LANGUAGES: [&str; 6] = ["sh", "text", "toml", "python", "rust", "json"];
/// Folders whose names begin a path of the repository.
const FOLDERS: [&str; 6] = ["core/", "datasets/", "docs/", "hpc/", "mpi-runtime/", "tests/"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A document by its name from the root of the repository.
struct Document {
    name: String,
    text: String,
}

static DOCUMENTS: LazyLock<Vec<Document>> = LazyLock::new(|| {
    let pages = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        pages.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    files.push(root().join("README.md"));
    files.sort();
    let document = |path: &PathBuf| Document {
        name: path.strip_prefix(root()).unwrap().display().to_string(),
        text: std::fs::read_to_string(path).unwrap(),
    };
    files.iter().map(document).collect()
});

/// Lines between fences, or of a set-up.
struct Block {
    /// Document and line.
    place: String,
    language: String,
    /// The comments `run:` before it, a line each.
    says: String,
    text: String,
}

impl Block {
    /// Whether it is skipped as long as the program has no such verb.
    fn if_verb(&self, verb: &str) -> bool {
        let clauses = self.says.split([';', '\n']).map(str::trim);
        clauses.filter_map(|clause| clause.strip_prefix("if verb ")).any(|named| named == verb)
    }
}

/// The blocks of a document, and its lines outside of them with their numbers.
fn parts(document: &Document) -> (Vec<Block>, Vec<(usize, &str)>) {
    let (mut blocks, mut prose, mut says) = (vec![], vec![], String::new());
    let mut lines = (1..).zip(document.text.lines());
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim();
        let (language, end) = match trimmed.strip_prefix("```") {
            Some(language) => (language, "```"),
            None if trimmed == "<!-- setup" => ("sh", "-->"),
            None => {
                let comment = trimmed.strip_prefix("<!-- run: ");
                match comment.and_then(|comment| comment.strip_suffix(" -->")) {
                    Some(comment) => says += &format!("{comment}\n"),
                    None => prose.push((number, line)),
                }
                continue;
            }
        };
        let inner = lines.by_ref().map(|(_, inner)| inner);
        let text: Vec<&str> = inner.take_while(|inner| inner.trim() != end).collect();
        let place = format!("{}:{number}", document.name);
        let says = if end == "-->" { String::new() } else { core::mem::take(&mut says) };
        blocks.push(Block { place, language: language.into(), says, text: text.join("\n") });
    }
    (blocks, prose)
}

/// All blocks of all documents.
fn blocks() -> impl Iterator<Item = Block> {
    DOCUMENTS.iter().flat_map(|document| parts(document).0)
}

/// Fails with all of `defects`, one under the other.
fn none(what: &str, defects: &[String]) {
    assert!(defects.is_empty(), "{what}:\n{}", defects.join("\n"));
}

/// What `umbra VERB --help` prints.
fn help(words: &[&str]) -> String {
    let arguments = [words, &["--help"]].concat();
    start(root(), 1, &program("umbra"), &arguments, &[]).wait(LIMIT).fine().stdout
}

/// The verbs of the program, and the help of each.
static VERBS: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    let all = help(&[]);
    let lines = all.lines().filter_map(|line| line.strip_prefix("  ")?.split_once("  "));
    let verbs =
        lines.map(|(verb, _)| verb.trim()).filter(|verb| !verb.is_empty() && *verb != "help");
    let verbs = verbs.filter(|verb| verb.bytes().all(|byte| byte.is_ascii_lowercase()));
    let mut found: BTreeMap<String, String> =
        verbs.map(|verb| (verb.to_owned(), help(&[verb]))).collect();
    for (verb, inner) in [
        ("data", "inspect"),
        ("data", "verify"),
        ("checkpoint", "inspect"),
        ("checkpoint", "verify"),
    ] {
        let text = help(&[verb, inner]);
        found.get_mut(verb).unwrap().push_str(&text);
    }
    found
});

/// The keys that the help of a verb lists.
fn keys(verb: &str) -> BTreeSet<&'static str> {
    let listed = VERBS[verb].split("\nKeys of ").nth(1).unwrap();
    let words = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    words.map(|word| word.trim_matches(['[', ']'])).collect()
}

/// Words of a command, quotes off.
fn words(command: &str) -> Vec<&str> {
    command.split_whitespace().map(|word| word.trim_matches(['"', '\'', '(', ')'])).collect()
}

/// The commands of lines of sh: without comments, with what goes on after a `\` in one.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.split(" # ").next().unwrap());
    let lines = lines.filter(|line| !line.trim_start().starts_with('#'));
    lines.flat_map(|line| line.split(['|', ';', '&'])).map(str::to_owned).collect()
}

#[test]
fn blocks_have_a_language_and_skips_a_reason() {
    let mut defects = vec![];
    for block in blocks() {
        if !LANGUAGES.contains(&&*block.language) {
            defects.push(format!("{}: the fence has `{}`", block.place, block.language));
        }
        for comment in block.says.lines().filter(|comment| comment.starts_with("skip")) {
            let why = comment.strip_prefix("skip, ").or_else(|| comment.strip_prefix("skip all, "));
            if why.is_none_or(|why| why.trim().is_empty()) {
                defects.push(format!("{}: `{comment}` does not say why", block.place));
            }
        }
    }
    none("blocks that do not say what they are", &defects);
    assert!(blocks().count() > 50, "only {} blocks: are they still found?", blocks().count());
}

#[test]
fn commands_have_the_verbs_and_flags_of_the_program() {
    let (mut defects, mut checked) = (vec![], 0);
    let known = keys("train");
    for block in blocks().filter(|block| block.language == "sh") {
        for command in commands(&block.text) {
            let words = words(&command);
            let Some(at) =
                words.iter().position(|word| *word == "umbra" || word.ends_with("/umbra"))
            else {
                continue;
            };
            let mut rest = words[at + 1..].iter();
            let Some(verb) = rest.next().filter(|verb| !verb.starts_with('-')) else { continue };
            if *verb == "launch" || block.if_verb(verb) {
                continue; // What it starts stands on the same line, and is what counts.
            }
            let Some(help) = VERBS.get(*verb) else {
                defects.push(format!("{}: no verb `{verb}`", block.place));
                continue;
            };
            checked += 1;
            while let Some(word) = rest.next() {
                let flag = word.split('=').next().unwrap();
                let is_flag = flag.starts_with("--") && flag.len() > 2;
                let listed = help.split([' ', ',', '\n']).any(|listed| listed == flag);
                if is_flag && !listed {
                    defects.push(format!("{}: umbra {verb} has no {flag}", block.place));
                }
                if flag == "--set" {
                    let set = word.strip_prefix("--set=").or_else(|| rest.next().copied()).unwrap();
                    let key = set.trim_start_matches(['"', '\'']).split('=').next().unwrap();
                    // A key that is misspelt ends with exit code 2, and is shown for that.
                    if !known.contains(key) && !block.says.contains("exit 2") {
                        defects.push(format!("{}: no key {key}", block.place));
                    }
                }
            }
        }
    }
    none("commands that the program does not know", &defects);
    assert!(checked > 30, "only {checked} commands: are they still found?");
}

/// The dotted names of all values of a table.
fn leaves(table: &toml::Table, before: &str, found: &mut Vec<String>) {
    for (name, value) in table {
        let path = if before.is_empty() { name.clone() } else { format!("{before}.{name}") };
        match value {
            toml::Value::Table(inner) => leaves(inner, &path, found),
            _ => found.push(path),
        }
    }
}

#[test]
fn keys_in_toml_are_known() {
    let (job, cluster) = (keys("train"), keys("simulate"));
    let (mut defects, mut checked) = (vec![], 0);
    for block in blocks().filter(|block| block.language == "toml") {
        let table = match block.text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                defects.push(format!("{}: {error}", block.place));
                continue;
            }
        };
        if block.says.contains("schema") {
            continue; // `make test-docs` prepares a file with it.
        }
        let known = if block.says.contains("cluster") { &cluster } else { &job };
        let mut found = vec![];
        leaves(&table, "", &mut found);
        checked += found.len();
        found.retain(|key| !known.contains(&**key));
        defects.extend(found.iter().map(|key| format!("{}: no key {key}", block.place)));
    }
    none("TOML that the program would refuse", &defects);
    assert!(checked > 20, "only {checked} keys: are they still found?");
}

/// Headings as the anchors that they are in links.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut defects = vec![];
    for document in DOCUMENTS.iter() {
        for (number, line) in parts(document).1 {
            let links = line.split("](").skip(1).filter_map(|link| link.split(')').next());
            for link in links.filter(|link| !link.contains("://")) {
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let here = root().join(&document.name);
                let path = if file.is_empty() { here } else { here.parent().unwrap().join(file) };
                let there = path.exists()
                    && (anchor.is_empty()
                        || anchors(&std::fs::read_to_string(&path).unwrap()).contains(anchor));
                if !there {
                    defects.push(format!("{}:{number}: {link}", document.name));
                }
            }
        }
    }
    none("links that lead nowhere", &defects);
}

#[test]
fn files_and_make_targets_that_are_named_exist() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut defects = vec![];
    for document in DOCUMENTS.iter() {
        let (blocks, prose) = parts(document);
        let quoted = prose.iter().flat_map(|(number, line)| {
            let words = line.split('`').skip(1).step_by(2);
            words.map(move |words| (format!("{}:{number}", document.name), words))
        });
        let shell = blocks.iter().filter(|block| block.language == "sh");
        let shell = shell.flat_map(|b| b.text.lines().map(|line| (b.place.clone(), line)));
        for (place, text) in quoted.chain(shell) {
            let words = words(text.split(" # ").next().unwrap());
            if words.first() == Some(&"make") && words.len() > 1 {
                let target = words[1..].iter().find(|word| !word.contains('=')).unwrap_or(&"help");
                let show = target
                    .strip_prefix("show-")
                    .filter(|name| name.starts_with(char::is_lowercase));
                let script = show.map(|name| root().join(format!("hpc/show/{name}.sh")));
                let rule = makefile.lines().any(|line| line.split(':').next() == Some(*target));
                let there = script.map_or(rule || *target == "show-NAME", |script| script.exists());
                if !there {
                    defects.push(format!("{place}: make {target}"));
                }
            }
            for word in words.iter().map(|word| word.trim_end_matches([',', '.', ':'])) {
                let is_path = FOLDERS.iter().any(|folder| word.starts_with(folder));
                if is_path && !word.contains(['*', '…', '$']) && !root().join(word).exists() {
                    defects.push(format!("{place}: no {word}"));
                }
            }
        }
    }
    none("names of what is not there", &defects);
}

#[test]
fn the_summary_names_every_page_and_the_command_line_every_verb() {
    let text = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let (summary, page) = (text("docs/SUMMARY.md"), text("docs/command-line.md"));
    let mut defects = vec![];
    for document in DOCUMENTS.iter() {
        let name = document.name.strip_prefix("docs/").unwrap_or("README.md");
        if name != "SUMMARY.md" && !summary.contains(&format!("({name})")) {
            defects.push(format!("docs/SUMMARY.md does not name {name}"));
        }
    }
    for verb in VERBS.keys().filter(|verb| !page.contains(&format!("`umbra {verb}"))) {
        defects.push(format!("docs/command-line.md does not name umbra {verb}"));
    }
    none("what is left out", &defects);
}
