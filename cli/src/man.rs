//! `feedrail man`: the manual pages of all programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man;

use crate::args::Cli;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail man ~/.local/share/man
  man feedrail-perf
  man 8 feedrail-target";

/// Writes the manual pages of feedrail, its commands and feedrail-target
///
/// They go to man1 and man8 in the folder, which may be a part of the path of man(1), and their
/// names are printed.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// Folder that they go to
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl ManArgs {
    pub(crate) fn run(&self) -> Result<()> {
        let mut names = Vec::new();
        let commands = ManualSection { number: "1", folder: &self.folder };
        commands.write_all(Cli::command(), "feedrail", &mut names)?;
        let daemons = ManualSection { number: "8", folder: &self.folder };
        daemons.write_all(feedrail_target::daemon::command(), "feedrail-target", &mut names)?;
        names.iter().try_for_each(|name| output::print(&format!("{name}\n")))
    }
}

/// A section of the manual.
struct ManualSection<'a> {
    number: &'static str,
    folder: &'a Path,
}

impl ManualSection<'_> {
    /// Writes the page of a command, and those of its subcommands, as `git` has them:
    /// `feedrail-index-create` is `feedrail index create`.
    fn write_all(&self, command: Command, name: &str, names: &mut Vec<String>) -> Result<()> {
        let command = command.disable_help_subcommand(true).display_name(name);
        for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
            let words = command.get_bin_name().unwrap_or(name);
            let bin_name = format!("{words} {}", child.get_name());
            let name = format!("{name}-{}", child.get_name());
            self.write_all(child.clone().bin_name(bin_name), &name, names)?;
        }
        let folder = self.folder.join(format!("man{}", self.number));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let page = folder.join(format!("{name}.{}", self.number));
        fs::write(&page, self.page_of(command)?).with_context(|| page.display().to_string())?;
        names.push(page.display().to_string());
        Ok(())
    }

    fn page_of(&self, command: Command) -> Result<Vec<u8>> {
        let examples = command.get_after_help().map(ToString::to_string);
        let has_subcommands = command.get_subcommands().any(|child| !child.is_hide_set());
        let man = Man::new(command).section(self.number);
        let mut text = Vec::new();
        man.render_title(&mut text)?;
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        if has_subcommands {
            man.render_subcommands_section(&mut text)?;
        }
        if let Some(examples) = examples {
            text.extend(examples_section(&examples).into_bytes());
        }
        Ok(text)
    }
}

/// The examples of a command's help, whose lines stay as they are.
fn examples_section(help: &str) -> String {
    let lines = help.strip_prefix("Examples:\n").unwrap_or(help).lines();
    let lines = lines.map(|line| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-")));
    format!(".SH EXAMPLES\n.nf\n{}.fi\n", lines.collect::<String>())
}
