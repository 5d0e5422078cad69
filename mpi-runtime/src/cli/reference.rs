//! `umbra reference`: the command line and the keys of jobs, for shells, manuals, editors and docs.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use clap::{Args, Command, Subcommand};
use clap_complete::Shell;
use roff::{Roff, bold, roman};

use super::job_file::SETS;
use crate::config::keys::keys;
use crate::config::reference;
use crate::error::Error;

/// Write what shells, man and editors want to know of umbra
#[derive(Args, Debug)]
pub(super) struct ReferenceArguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Completions of a shell, to stdout
    #[command(after_long_help = COMPLETIONS_HELP)]
    Completions {
        /// bash, zsh, fish, elvish or powershell
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Manual pages, a file for each verb and umbra-job.5 for job files
    Man {
        /// Folder that they are written to; it is made if it is not there
        #[arg(long, value_name = "DIR")]
        output: PathBuf,
    },
    /// JSON Schema of job files, to stdout
    Schema,
    /// Every key of a job file as a page of Markdown, to stdout
    Keys,
}

const COMPLETIONS_HELP: &str = "\
bash: umbra reference completions bash > ~/.local/share/bash-completion/completions/umbra
zsh:  umbra reference completions zsh > a folder of $fpath, as _umbra
fish: umbra reference completions fish > ~/.config/fish/completions/umbra.fish";

/// Runs the verb on the program's command line. One process, without MPI.
pub(super) fn run(arguments: &ReferenceArguments, mut program: Command) -> Result<(), Error> {
    let text = match &arguments.what {
        What::Schema => reference::schema().into_bytes(),
        What::Keys => reference::page().into_bytes(),
        What::Man { output } => return manual(program, output),
        What::Completions { shell } => {
            let mut text = vec![];
            program = with_settings(program);
            clap_complete::generate(*shell, &mut program, "umbra", &mut text);
            if *shell == Shell::Bash {
                text.extend_from_slice(BASH_SETTINGS.as_bytes());
            }
            text
        }
    };
    // A closed stdout is no failure.
    let _ = std::io::stdout().lock().write_all(&text);
    Ok(())
}

/// The command line with the keys of jobs as what `--set` may be, which is more than completions
/// but less than what it takes.
fn with_settings(mut program: Command) -> Command {
    let verbs: Vec<String> =
        program.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for name in verbs {
        program = program.mut_subcommand(name, |verb| {
            let takes = verb.get_arguments().any(|argument| argument.get_id() == SETS);
            if !takes {
                return verb;
            }
            let parser =
                PossibleValuesParser::new(reference::settings().iter().map(String::as_str));
            verb.mut_arg(SETS, |argument| argument.value_parser(parser))
        });
    }
    program
}

/// `--set KEY=VALUE` is three words to bash, and what ends in a sign is no whole word yet.
const BASH_SETTINGS: &str = r#"
_umbra_setting() {
    local at=$COMP_CWORD key=
    if [[ ${COMP_WORDS[at]} == = ]]; then
        at=$((at - 1))
        key=${COMP_WORDS[at]}=
    elif [[ $at -gt 2 && ${COMP_WORDS[at - 1]} == = ]]; then
        at=$((at - 2))
        key=${COMP_WORDS[at]}=
    fi
    if [[ -n $key && ${COMP_WORDS[at - 1]} == --set ]]; then
        _umbra "$1" "$key${2#=}" --set
        COMPREPLY=("${COMPREPLY[@]#"$key"}")
    else
        _umbra "$@"
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}
complete -F _umbra_setting -o nosort -o bashdefault -o default umbra
"#;

fn manual(program: Command, folder: &Path) -> Result<(), Error> {
    let failed = |error| {
        Error::Failure(format!("cannot write manual pages to {}: {error}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    std::fs::write(folder.join("umbra-job.5"), job_page()).map_err(failed)?;
    // What help lists has a page of its own.
    let program =
        program.mut_subcommand("train", |train| train.after_long_help("Job files: umbra-job(5)."));
    clap_mangen::generate_to(program, folder).map_err(failed)
}

/// The manual page of job files.
fn job_page() -> String {
    let mut page = Roff::new();
    page.control("TH", ["umbra-job", "5"]);
    page.control("SH", ["NAME"]).text([roman("umbra-job - keys of a job file")]);
    page.control("SH", ["DESCRIPTION"]).text([roman(
        "A job file is TOML; on the command line, --set KEY=VALUE comes after it. A job needs \
         data.train and model.kind, and all else has a default. A key that a job has no use for \
         is refused.",
    )]);
    let mut section = None;
    for key in keys() {
        if section != Some(key.section()) {
            section = Some(key.section());
            let name = if key.section().is_empty() { "KEYS" } else { key.section() };
            page.control("SH", [name]);
        }
        page.control("TP", []).text([bold(key.path)]);
        page.text([roman(reference::sentences(key))]);
    }
    page.render()
}
