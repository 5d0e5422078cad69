//! Rust sources as text: tokens, long lines, and which module uses which.
//!
//! This is no parser. It knows what stands in comments and literals, where `#[cfg(test)]` items
//! end, and how paths are written: `crate::…`, `super::…`, `self::…`, and the children of a module
//! by name. Re-exports (`pub use`) are followed to the module that defines the item.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Longest line, in characters: `max_width` of rustfmt.toml.
pub const COLUMNS: usize = 100;

/// The sources of one package: those of its library, below `src`.
#[derive(Debug, Default)]
pub struct Package {
    /// By their module: `[]` is lib.rs, `["a", "b"]` is a/b.rs or a/b/mod.rs.
    modules: BTreeMap<Vec<String>, Module>,
}

/// What is taken from one file.
#[derive(Debug)]
struct Module {
    file: PathBuf,
    uses: Vec<Use>,
}

/// A path in the code of a module, and where.
#[derive(Clone, Debug)]
struct Use {
    /// From the root of the package.
    path: Vec<String>,
    line: usize,
    /// In a `use`: the name that it gives the item here.
    name: Option<String>,
    /// In a `pub use`, of any visibility.
    exported: bool,
}

/// One node of a circle needs another, and where.
type Edges = BTreeMap<(String, String), String>;

impl Package {
    /// Reads all sources below the folder `src` of the package in the folder `name` of `root`.
    pub fn read(root: &Path, name: &str) -> Self {
        let src = root.join(name).join("src");
        let files = rust_files(&src).into_iter().map(|file| {
            let text = std::fs::read_to_string(&file).unwrap();
            let [below, named] = [&*src, root].map(|up| file.strip_prefix(up).unwrap().to_owned());
            (below, named, text)
        });
        Self::of(files)
    }

    /// Of (path below `src`, name in messages, text) of every file. Binaries are packages of their
    /// own and are left out.
    pub fn of(files: impl Iterator<Item = (PathBuf, PathBuf, String)>) -> Self {
        let mut texts: BTreeMap<Vec<String>, (PathBuf, Vec<Token>)> = BTreeMap::new();
        for (below, file, text) in files {
            let mut module: Vec<String> =
                below.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            let last = module.pop().unwrap().trim_end_matches(".rs").to_owned();
            if module.first().is_some_and(|first| first == "bin") || below == Path::new("main.rs") {
                continue;
            }
            let is_root = module.is_empty() && last == "lib";
            if !is_root && last != "mod" {
                module.push(last);
            }
            texts.insert(module, (file, tokens(&text)));
        }
        let mut package = Self::default();
        let mut tests_only = BTreeSet::new();
        for (module, (file, tokens)) in &texts {
            let children: BTreeSet<&str> = texts
                .keys()
                .filter(|other| other.len() == module.len() + 1 && other.starts_with(module))
                .filter_map(|other| other.last().map(String::as_str))
                .collect();
            let mut reader = Reader { tokens, module, children, uses: vec![], tests: vec![] };
            reader.read();
            tests_only.extend(reader.tests.into_iter().map(|name| child(module, &name)));
            let uses = reader.uses;
            package.modules.insert(module.clone(), Module { file: file.clone(), uses });
        }
        package.modules.retain(|module, _| !tests_only.iter().any(|test| module.starts_with(test)));
        package
    }

    /// Circles between the folders and files that lie directly in the module `base`; what `base`
    /// re-exports is no use of it. Every message names the files and lines that close the circle.
    pub fn circles(&self, base: &[&str]) -> Vec<String> {
        let base: Vec<String> = base.iter().map(|&part| part.to_owned()).collect();
        let mut edges = Edges::new();
        for (module, content) in &self.modules {
            let Some(from) = node(&base, module) else { continue };
            for used in &content.uses {
                if used.exported && *module == base {
                    continue;
                }
                let Some(to) = node(&base, &self.definer(&used.path, 0)) else { continue };
                if from != to {
                    let place = format!("{}:{}", content.file.display(), used.line);
                    edges
                        .entry((from.clone(), to))
                        .or_insert_with(|| format!("{place} uses crate::{}", used.path.join("::")));
                }
            }
        }
        describe(&edges)
    }

    /// The module that defines what `path` names, through re-exports.
    fn definer(&self, path: &[String], depth: usize) -> Vec<String> {
        let length = (0..=path.len())
            .rev()
            .find(|&length| self.modules.contains_key(&path[..length]))
            .unwrap_or(0);
        let (module, rest) = path.split_at(length);
        let Some(module_content) = self.modules.get(module) else { return module.to_vec() };
        let Some(name) = rest.first() else { return module.to_vec() };
        let given = module_content.uses.iter().find(|used| used.name.as_ref() == Some(name));
        match given {
            Some(given) if depth < 8 && given.path != path => {
                let behind = [&given.path[..], &rest[1..]].concat();
                self.definer(&behind, depth + 1)
            }
            _ => module.to_vec(),
        }
    }
}

/// The part of `base` that `module` is in; `base` itself is a part of its own.
fn node(base: &[String], module: &[String]) -> Option<String> {
    let rest = module.strip_prefix(base)?;
    let own = if base.is_empty() { "lib.rs" } else { "mod.rs" };
    Some(rest.first().map_or(own, String::as_str).to_owned())
}

fn child(module: &[String], name: &str) -> Vec<String> {
    [module, &[name.to_owned()]].concat()
}

/// A message for every set of nodes that reach each other.
fn describe(edges: &Edges) -> Vec<String> {
    let nodes: BTreeSet<&String> = edges.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached = |start: &String| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![start.clone()]);
        while let Some(at) = left.pop() {
            for (_, to) in edges.keys().filter(|(from, _)| *from == at) {
                if seen.insert(to.clone()) {
                    left.push(to.clone());
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<String>> =
        nodes.iter().map(|&node| (node, reached(node))).collect();
    let mut messages = BTreeSet::new();
    for &node in &nodes {
        let circle: BTreeSet<&String> = nodes
            .iter()
            .copied()
            .filter(|&other| reach[node].contains(other) && reach[other].contains(node))
            .collect();
        if circle.is_empty() {
            continue;
        }
        let names: Vec<&str> = circle.iter().map(|name| name.as_str()).collect();
        let closing = edges
            .iter()
            .filter(|((from, to), _)| circle.contains(from) && circle.contains(to))
            .map(|((from, to), place)| format!("\n    {from} → {to}: {place}"));
        messages.insert(format!("circle {}{}", names.join(" ↔ "), closing.collect::<String>()));
    }
    messages.into_iter().collect()
}

/// All files below `folder` whose names end in `.rs`, in order.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = vec![];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Numbers (from 1) and lengths of the lines above [`COLUMNS`]; the row of a table is one line.
pub fn long_lines(text: &str) -> Vec<(usize, usize)> {
    let is_row = |line: &str| {
        let line = line.trim_start();
        line.starts_with("//! |") || line.starts_with("/// |")
    };
    let length = |line: &str| if is_row(line) { 0 } else { line.chars().count() };
    let lengths = text.lines().map(length).enumerate();
    lengths.filter(|(_, length)| *length > COLUMNS).map(|(at, length)| (at + 1, length)).collect()
}

/// A word or a sign of the code, and its line from 1.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    text: String,
    line: usize,
}

/// The code of `text` without comments and literals. `::` is one token.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut at, mut line) = (vec![], 0, 1);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let here =
        |at: usize, text: &str| chars[at..].iter().take(text.len()).copied().eq(text.chars());
    while at < chars.len() {
        let start = at;
        if here(at, "//") {
            at += chars[at..].iter().take_while(|&&c| c != '\n').count();
        } else if here(at, "/*") {
            let mut depth = 0;
            loop {
                if here(at, "/*") {
                    (depth, at) = (depth + 1, at + 2);
                } else if here(at, "*/") {
                    (depth, at) = (depth - 1, at + 2);
                } else {
                    at += 1;
                }
                if depth == 0 || at >= chars.len() {
                    break;
                }
            }
        } else if is_word(chars[at]) {
            at += chars[at..].iter().take_while(|&&c| is_word(c)).count();
            let word: String = chars[start..at].iter().collect();
            let hashes = chars[at..].iter().take_while(|&&c| c == '#').count();
            let raw = ["r", "br", "cr"].contains(&&*word) && chars.get(at + hashes) == Some(&'"');
            if raw {
                let end = format!("\"{}", "#".repeat(hashes));
                at += hashes + 1;
                while at < chars.len() && !here(at, &end) {
                    at += 1;
                }
                at += end.len();
            } else if !(["b", "c"].contains(&&*word) && chars.get(at) == Some(&'"')) {
                tokens.push(Token { text: word, line });
            }
        } else if chars[at] == '"' {
            at = literal_end(&chars, at);
        } else if chars[at] == '\'' {
            let is_char = chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'');
            at = if is_char { literal_end(&chars, at) } else { at + 1 };
        } else if here(at, "::") {
            tokens.push(Token { text: "::".to_owned(), line });
            at += 2;
        } else {
            if !chars[at].is_whitespace() {
                tokens.push(Token { text: chars[at].to_string(), line });
            }
            at += 1;
        }
        line += chars[start..at.min(chars.len())].iter().filter(|&&c| c == '\n').count();
    }
    tokens
}

fn word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Behind the literal that begins at `at` with its quotation mark.
fn literal_end(chars: &[char], at: usize) -> usize {
    let (quote, mut at) = (chars[at], at + 1);
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Takes the paths out of the tokens of one file.
struct Reader<'a> {
    tokens: &'a [Token],
    module: &'a [String],
    children: BTreeSet<&'a str>,
    uses: Vec<Use>,
    /// Children that exist in tests only.
    tests: Vec<String>,
}

impl Reader<'_> {
    fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.text == text)
    }

    fn read(&mut self) {
        let (mut at, mut depth) = (0, 0);
        // Depths at which modules inside the file begin.
        let mut inner: Vec<usize> = vec![];
        while at < self.tokens.len() {
            if self.is(at, "#") && self.is(at + 1, "[") {
                let end = self.closing(at + 1);
                let words = || self.tokens[at..end].iter().map(|token| token.text.as_str());
                let only_tests = words().any(|word| word == "cfg")
                    && words().any(|word| word == "test")
                    && !words().any(|word| word == "not");
                at = if only_tests { self.skip_item(end) } else { end };
            } else if self.is(at, "mod") && self.is(at + 2, "{") {
                inner.push(depth);
                (at, depth) = (at + 3, depth + 1);
            } else if self.is(at, "use") && !self.is(at + 1, "<") {
                let exported = at > 0 && (self.is(at - 1, "pub") || self.is(at - 1, ")"));
                at = self.tree(at + 1, &[], inner.len(), Some(exported));
            } else if self.is(at, "{") {
                (at, depth) = (at + 1, depth + 1);
            } else if self.is(at, "}") {
                (at, depth) = (at + 1, depth - 1);
                if inner.last() == Some(&depth) {
                    inner.pop();
                }
            } else if word(&self.tokens[at].text)
                && self.is(at + 1, "::")
                && (at == 0 || !self.is(at - 1, "::"))
            {
                at = self.tree(at, &[], inner.len(), None);
            } else {
                at += 1;
            }
        }
    }

    /// Behind the bracket that closes the one at `at`.
    fn closing(&self, at: usize) -> usize {
        let mut depth = 0;
        for (length, token) in self.tokens[at..].iter().enumerate() {
            match token.text.as_str() {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at + length + 1;
            }
        }
        self.tokens.len()
    }

    /// Behind the item that begins at `at`, which exists in tests only.
    fn skip_item(&mut self, mut at: usize) -> usize {
        while at < self.tokens.len() {
            if self.is(at, "mod") && self.is(at + 2, ";") {
                self.tests.push(self.tokens[at + 1].text.clone());
            }
            match self.tokens[at].text.as_str() {
                ";" | "," => return at + 1,
                "{" => return self.closing(at),
                "(" | "[" => at = self.closing(at),
                _ => at += 1,
            }
        }
        at
    }

    /// Reads the path at `at` that goes on from `prefix`, or in a `use` (`exported` is given) a
    /// whole tree of them. Returns where it ends.
    fn tree(
        &mut self,
        at: usize,
        prefix: &[String],
        inner: usize,
        exported: Option<bool>,
    ) -> usize {
        let (mut path, mut at, line) = (prefix.to_vec(), at, self.tokens[at].line);
        loop {
            if self.is(at, "{") && exported.is_some() {
                let end = self.closing(at);
                at += 1;
                while at < end - 1 {
                    at = self.tree(at, &path, inner, exported);
                    at += usize::from(self.is(at, ","));
                }
                return end;
            }
            let Some(token) = self.tokens.get(at) else { return at };
            if word(&token.text) {
                path.push(token.text.clone());
                at += 1;
            } else if self.is(at, "*") {
                at += 1;
            }
            if !self.is(at, "::") {
                break;
            }
            at += 1;
            if exported.is_none() && (self.is(at, "<") || self.is(at, "{")) {
                break;
            }
        }
        let mut name = path.last().cloned();
        if exported.is_some() && self.is(at, "as") {
            name = self.tokens.get(at + 1).map(|token| token.text.clone());
            at += 2;
        }
        // `use a::{self, …}` names a.
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
            name = path.last().cloned();
        }
        if let Some(path) = self.absolute(path, inner) {
            let name = name.filter(|_| exported.is_some());
            self.uses.push(Use { path, line, name, exported: exported == Some(true) });
        }
        at
    }

    /// The path from the root of the package; `None` where it leads to another.
    fn absolute(&self, path: Vec<String>, inner: usize) -> Option<Vec<String>> {
        let supers = path.iter().take_while(|part| *part == "super").count();
        let first = path.first()?.as_str();
        let (base, rest) = match first {
            "crate" => (vec![], &path[1..]),
            "super" => {
                // Out of the modules inside the file first.
                let up = supers.saturating_sub(inner);
                let length = self.module.len().checked_sub(up)?;
                (self.module[..length].to_vec(), &path[supers..])
            }
            "self" => (self.module.to_vec(), &path[1..]),
            _ if inner == 0 && self.children.contains(first) => (self.module.to_vec(), &path[..]),
            _ => return None,
        };
        Some([&base[..], rest].concat())
    }
}
