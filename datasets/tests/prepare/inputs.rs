//! What is read: patterns, folders, pipes, gzip with something behind it, text that changes.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::thread;

use umbra_datasets::prepare::{Format, PrepareOptions, prepare};

use crate::{Folder, column, criteo_lines, gzip, message, run};

#[test]
fn folders_and_patterns_stand_for_their_files_by_name() {
    let folder = Folder::new();
    fs::create_dir(folder.path("days")).unwrap();
    fs::create_dir(folder.path("days/more")).unwrap();
    for (name, rows) in [("days/b", 3), ("days/a", 2), ("days/.hidden", 9), ("days/more/c", 5)] {
        folder.write(name, "0 1:1\n".repeat(rows));
    }
    // A file is itself even where its name is a pattern.
    folder.write("days/[ab]", "0 2:1\n");
    let rows = |inputs: &[&str]| {
        let inputs = inputs.iter().map(|input| folder.path(input)).collect();
        let output = folder.path("out.h5");
        let options = PrepareOptions::new(Format::Libfm, inputs, output);
        run(&PrepareOptions { overwrite: true, ..options }).unwrap().rows_written
    };
    assert_eq!(rows(&["days"]), 6);
    assert_eq!(rows(&["days/[ab]"]), 1);
    assert_eq!(rows(&["days/?"]), 5);
    assert_eq!(rows(&["days/*", "days/more/c"]), 16);
    assert_eq!(rows(&["days/[b-z]"]), 3);

    folder.write("days/a", "1 7:1\n1 8:1\n");
    run(&PrepareOptions { overwrite: true, ..folder.options(Format::Libfm, "days", "out.h5") })
        .unwrap();
    assert_eq!(column::<f32>(&folder.path("out.h5"), "label"), [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    fs::create_dir(folder.path("empty")).unwrap();
    for none in ["empty", "days/*.gz"] {
        let got = message(&folder.options(Format::Libfm, none, "no.h5"));
        assert!(got.contains("no file there that could be read"), "{got}");
    }
}

/// A pipe with `text` in it, and the thread that fills it.
fn pipe(folder: &Folder, name: &str, text: Vec<u8>) -> (PathBuf, thread::JoinHandle<()>) {
    let path = folder.path(name);
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
    let to = path.clone();
    let fill = move || {
        // The reader may refuse the pipe.
        let _ =
            fs::OpenOptions::new().write(true).open(to).and_then(|mut pipe| pipe.write_all(&text));
    };
    (path, thread::spawn(fill))
}

#[test]
fn a_pipe_is_as_good_as_a_file() {
    let folder = Folder::new();
    let text = "y,x,a\n1,2,p\n0,4.5,q\n".to_owned() + &"1,3,r\n".repeat(100_000);
    folder.write("in", &text);
    let z_scores = "label = \"y\"\ndense = [{ column = \"x\", transform = \"zscore\" }]\n\
                    sparse = [\"a\"]";
    let schema = Some(folder.write("s.toml", z_scores));
    for (way, hash_size) in [("hashed", Some(1000)), ("counted", None)] {
        let file = PrepareOptions {
            schema: schema.clone(),
            hash_size,
            ..folder.options(Format::Csv, "in", &format!("{way}.h5"))
        };
        run(&file).unwrap();
        for (name, text) in [("plain", text.clone().into_bytes()), ("gzip", gzip(text.as_bytes()))]
        {
            let (path, fill) = pipe(&folder, &format!("{way}-{name}"), text);
            let output = folder.path(&format!("{way}-{name}.h5"));
            let options = PrepareOptions { inputs: vec![path], output, ..file.clone() };
            run(&options).unwrap();
            fill.join().unwrap();
            assert!(fs::read(&options.output).unwrap() == fs::read(&file.output).unwrap());
        }
    }
}

#[test]
fn zeros_may_follow_gzip_and_nothing_else() {
    let folder = Folder::new();
    let packed = gzip(criteo_lines(3000).as_bytes());
    folder.write("padded", [packed.clone(), vec![0; 300_000]].concat());
    let summary = run(&folder.options(Format::Criteo, "padded", "padded.h5")).unwrap();
    assert_eq!(summary.rows_written, 3000);
    for trailing in ["x", "and more text behind it"] {
        folder.write("trailing", [packed.clone(), trailing.into()].concat());
        let got = message(&folder.options(Format::Criteo, "trailing", "no.h5"));
        assert!(got.contains("bytes that are not gzip follow the compressed text"), "{got}");
    }
}

/// Keys of one text and rows of another is what reading it twice could make.
#[test]
fn what_happens_to_a_text_once_it_is_read_changes_nothing() {
    let folder = Folder::new();
    let text = criteo_lines(4000);
    folder.write("in", &text);
    run(&folder.options(Format::Criteo, "in", "expected.h5")).unwrap();
    let expected = fs::read(folder.path("expected.h5")).unwrap();
    let grown = text.clone() + &criteo_lines(1);
    let swapped = text.replacen("\n1\t", "\n0\t", 1);
    for (number, changed) in [grown, swapped, String::new()].into_iter().enumerate() {
        let path = folder.write("in", &text);
        let mut before = folder.names();
        let mut changed = Some(changed);
        let change = &mut |progress: umbra_datasets::prepare::Progress| {
            if progress.rows == 4000 && progress.pass == 1 {
                changed.take().into_iter().for_each(|text| fs::write(&path, text).unwrap());
            }
        };
        let options = folder.options(Format::Criteo, "in", &format!("out{number}.h5"));
        let summary = prepare(&options, change).unwrap();
        assert!(changed.is_none());
        assert_eq!(summary.rows_written, 4000);
        assert!(fs::read(&options.output).unwrap() == expected);
        before.push(format!("out{number}.h5"));
        before.sort();
        assert_eq!(folder.names(), before);
    }
}

/// Files are open one at a time.
#[test]
fn a_thousand_inputs_need_few_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let folder = Folder::new();
    fs::create_dir(folder.path("many")).unwrap();
    for number in 0..1000 {
        folder.write(&format!("many/{number:04}"), format!("y,a\n{},k{number}\n", number % 2));
    }
    let schema = Some(folder.write("s.toml", "label = \"y\"\nsparse = [\"a\"]"));
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum: before.maximum }).unwrap();
    let options = folder.options(Format::Csv, "many", "out.h5");
    let summary = run(&PrepareOptions { schema, ..options });
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(summary.unwrap().fields[0].cardinality, 1001);
}
