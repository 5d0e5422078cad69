//! `docs/configuration.md`: the table of keys in Markdown.

use core::fmt::Write as _;

use super::{default, sentence, takes, used};
use crate::config::keys::keys;

/// The page.
#[must_use]
pub fn page() -> String {
    let code = |text: &str| format!("`{text}`");
    let mut text = String::from(HEAD);
    let mut section = None;
    for key in keys() {
        if section != Some(key.section()) {
            section = Some(key.section());
            // Writing to a String cannot fail.
            let _ = match key.section() {
                "" => write!(text, "\n## Outside of any section\n"),
                name => write!(text, "\n## `[{name}]`\n"),
            };
            text.push_str("\n| key | takes | default | what it is |\n| --- | --- | --- | --- |\n");
        }
        let name = key.path.strip_prefix(key.section()).unwrap_or(key.path);
        let name = name.trim_start_matches('.');
        let about = [sentence(key.about), used(key, code)];
        let about = about.join(" ");
        let _ = writeln!(
            text,
            "| `{name}` | {} | {} | {} |",
            takes(key, code),
            default(key, code),
            about.trim_end()
        );
    }
    text
}

const HEAD: &str = "\
# Keys of a job file

<!-- `umbra reference keys` writes this page from the table in mpi-runtime/src/config/key_list/. -->

A job file is [TOML](https://toml.io): `lr = 0.01` below `[optim.dense]`. On the command line the
same is `--set optim.dense.lr=.01`, which comes after the file; the last one wins. `umbra train
--help` has what is below, and the run folder's `config.toml` what a run took for every key.

A job needs its training data and the kind of its model; all else has a default:

```toml
#:schema ./umbra.schema.json
data = { train = \"train.h5\" }
model = { kind = \"deepfm\" }
```

The first line is for editors that know TOML (Taplo, Even Better TOML): with the path of
[umbra.schema.json](umbra.schema.json), which `umbra reference schema` writes too, they complete
keys and mark mistakes. The schema knows keys, types, choices and ranges; what keys say about each
other is left to `umbra train --dry-run`.

A key that a job has no use for is refused, and the message names what uses it: somebody meant
something by it. Its default is taken, so that a `config.toml` can be changed by `--set`. Where
a key is taken without effect instead, its line says so. Numbers in brackets are ranges: `(0, 1]`
is above 0 and at most 1. Paths begin in the current directory.
";
