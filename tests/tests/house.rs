//! The house that the sources live in: folders that form no circle, few files at the top, lines
//! that fit, and a map of it that is true.
//!
//! What crosses packages is Cargo's to enforce. Within a package Rust allows everything, so this
//! test reads the sources. A failure names the file and line to mend.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use umbra_tests::sources::{COLUMNS, Package, long_lines, rust_files};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Fails with all of `defects`, one under the other.
fn none(what: &str, defects: &[String]) {
    assert!(defects.is_empty(), "{what}:\n{}", defects.join("\n"));
}

fn circles(package: &str, base: &[&str]) {
    let found = Package::read(&root(), package).circles(base);
    none(&format!("folders of {package}/src that use each other"), &found);
}

#[test]
fn folders_of_the_core_form_no_circle() {
    circles("core", &[]);
}

#[test]
fn folders_of_datasets_form_no_circle() {
    circles("datasets", &[]);
    circles("datasets", &["prepare"]);
    // Small enough for its files to have an order, too.
    circles("datasets", &["hdf5"]);
}

#[test]
fn folders_of_the_runtime_form_no_circle() {
    circles("mpi-runtime", &[]);
}

/// Whoever opens the folder sees rooms, not forty files.
#[test]
fn few_files_lie_at_the_top_of_the_runtime() {
    let src = root().join("mpi-runtime/src");
    let at_the_top = |file: &PathBuf| file.parent() == Some(&*src);
    let files: Vec<PathBuf> = rust_files(&src).into_iter().filter(at_the_top).collect();
    assert!(files.len() <= 8, "{} files directly in {}, above 8", files.len(), src.display());
}

/// A check that writes does so in a folder of its own: what one leaves here, somebody commits.
#[test]
fn no_run_leaves_files_among_the_tests() {
    const OWN: [&str; 8] =
        ["Cargo.toml", "blocks", "examples", "fuzz", "golden", "peers", "src", "tests"];
    let left = std::fs::read_dir(root().join("tests")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = left.filter(|name| !OWN.contains(&name.as_str())).collect();
    none("files in tests/ that are not of the project", &left);
}

/// Comments and literals are included, since rustfmt leaves both as they are: a long literal goes
/// on in the next line after a `\`. The rows of a table in a comment are not, since a row is one
/// line.
#[test]
fn no_line_is_wider_than_rustfmt_allows() {
    let mut defects = vec![];
    for package in ["core", "datasets", "mpi-runtime", "tests"] {
        for file in rust_files(&root().join(package)) {
            for (line, columns) in long_lines(&std::fs::read_to_string(&file).unwrap()) {
                let name = file.strip_prefix(root()).unwrap().display();
                defects.push(format!("{name}:{line}: {columns} columns"));
            }
        }
    }
    none(&format!("{} lines above {COLUMNS} columns", defects.len()), &defects);
}

/// Every path in the table "Where to find what" exists. A path that does not begin with a folder of
/// the project goes on from the one before it in its cell: beside it, or beside its folder.
#[test]
fn the_map_in_the_architecture_is_true() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut defects = vec![];
    let (mut inside, mut checked) = (false, 0);
    for (number, line) in (1..).zip(text.lines()) {
        if line.starts_with("## ") {
            inside = line == "## Where to find what";
        }
        if !inside || !line.starts_with('|') {
            continue;
        }
        let mut near = root();
        for path in paths(line) {
            checked += 1;
            let beside = near.parent().map(|folder| folder.join(path));
            let candidates = [Some(root().join(path)), Some(near.join(path)), beside];
            match candidates.into_iter().flatten().find(|path| path.exists()) {
                // Later paths go on from the first that is whole.
                Some(found) if near == root() => {
                    near = if found.is_dir() { found } else { found.parent().unwrap().to_owned() };
                }
                Some(_) => {}
                None => defects.push(format!("ARCHITECTURE.md:{number}: no {path}")),
            }
        }
    }
    none("places that do not exist", &defects);
    assert!(checked > 20, "only {checked} paths: is the table still there?");
}

/// What looks like a path of a file or folder between backticks, and the targets of links.
fn paths(line: &str) -> Vec<&str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let quoted = quoted.filter(|text| {
        let is_path = text.ends_with('/') || text.ends_with(".rs") || text.ends_with(".md");
        is_path && !text.contains(' ')
    });
    let links = line.split("](").skip(1).filter_map(|link| link.split(')').next());
    quoted.chain(links).collect()
}

/// The circles of a package of these files.
fn circles_of(files: &[(&str, &str)], base: &[&str]) -> Vec<String> {
    let files = files.iter().map(|(name, text)| (name.into(), name.into(), (*text).to_owned()));
    Package::of(files).circles(base)
}

#[test]
fn a_circle_is_found_with_its_lines() {
    let files = [
        ("lib.rs", "pub mod a;\nmod b;\nmod c;\npub use a::deep::Thing;\n"),
        ("a/mod.rs", "mod deep;\npub use deep::Thing;\n"),
        ("a/deep.rs", "\nuse std::{fmt, io};\nuse crate::{b::{self, One}, c};\n"),
        ("b.rs", "fn f() {\n    crate::c::g();\n}\n"),
        ("c.rs", "mod inside {\n    use super::super::Thing;\n}\n"),
    ];
    let expected = [
        "circle a ↔ b ↔ c",
        "    a → b: a/deep.rs:3 uses crate::b",
        "    a → c: a/deep.rs:3 uses crate::c",
        "    b → c: b.rs:2 uses crate::c::g",
        "    c → a: c.rs:2 uses crate::Thing",
    ];
    assert_eq!(circles_of(&files, &[]), [expected.join("\n")]);
}

#[test]
fn within_a_folder_too_and_by_the_names_of_children() {
    let files = [
        ("lib.rs", "mod p;"),
        ("p/mod.rs", "mod x;\nmod y;\nuse x::Thing;\npub(crate) use y::Other;\n"),
        ("p/x.rs", "fn f() { super::g() }"),
        ("p/y/mod.rs", "mod z;"),
        ("p/y/z.rs", "use super::super::Other;"),
    ];
    assert_eq!(circles_of(&files, &[]), [""; 0]);
    let found = circles_of(&files, &["p"]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("circle mod.rs ↔ x\n"), "{found:?}");
}

#[test]
fn comments_literals_and_tests_are_no_uses() {
    let files = [
        ("lib.rs", "mod a; mod b;\n#[cfg(test)]\nmod twin;\n"),
        ("a.rs", "use crate::b;\n"),
        (
            "b.rs",
            "// crate::a::x\n/* /* crate::a */ crate::a */ const S: &str = \"\\\" crate::a::b\";\n\
             const R: &str = r#\"\" crate::a::b \"#; const C: char = '\"'; fn f<'a>() {}\n\
             #[cfg(test)]\nuse crate::a::one;\n\
             #[cfg(test)]\n#[allow(unused)]\nmod tests {\n    use crate::a; fn f() { a::g() }\n}\n",
        ),
        ("twin.rs", "use crate::a; use crate::b;"),
    ];
    assert_eq!(circles_of(&files, &[]), [""; 0]);
    let mut with_code = files;
    with_code[2].1 = "const C: char = '\"'; fn f() { crate::a::g(\"\") }";
    assert_eq!(circles_of(&with_code, &[]).len(), 1);
}
