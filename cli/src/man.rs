//! `feedrail man`: writes the manual pages of all programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man;

use crate::args::Cli;
use crate::config_page::config_page;
use crate::output;

/// Name of the daemon's page, which is in section 8: man(1) would prefer one of this name in
/// section 1.
const DAEMON: &str = "feedrail-target";
/// Name of the page of `feedrail target`.
const COMMANDS: &str = "feedrail-target-commands";
/// References to these pages in roff.
const PAGE: &str = "feedrail\\-target\\-commands(1)";
const DAEMON_PAGE: &str = "feedrail\\-target(1)";

const EXAMPLES: &str = "\
Examples:
  feedrail man ~/.local/share/man
  man feedrail-perf
  man feedrail-target-commands
  man feedrail-target
  man feedrail.toml";

/// Writes the manual pages of feedrail, its commands, feedrail-target and feedrail.toml
///
/// They go to man1, man5 and man8 in the folder, which may be a part of the path of man(1), and
/// their names are printed. That of `feedrail target` is feedrail-target-commands(1), because
/// feedrail-target(8) is the daemon.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// Directory to which the pages are written
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
        let formats = ManualSection { number: "5", folder: &self.folder };
        let page = config_page(feedrail_target::EXAMPLE_CONFIGURATION);
        formats.write("feedrail.toml", page.as_bytes(), &mut names)?;
        names.iter().try_for_each(|name| output::print(&format!("{name}\n")))
    }
}

/// Section of the manual, and the folder for its pages.
struct ManualSection<'a> {
    number: &'static str,
    folder: &'a Path,
}

impl ManualSection<'_> {
    /// Writes the page of a command and those of its subcommands, named as those of `git`:
    /// `feedrail-index-create` is `feedrail index create`.
    fn write_all(&self, command: Command, name: &str, names: &mut Vec<String>) -> Result<()> {
        let command = command.disable_help_subcommand(true).display_name(name);
        for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
            let words = command.get_bin_name().unwrap_or(name);
            let bin_name = format!("{words} {}", child.get_name());
            let name = format!("{name}-{}", child.get_name());
            self.write_all(child.clone().bin_name(bin_name), &name, names)?;
        }
        let page = String::from_utf8_lossy(&self.page_of(command)?).replace(DAEMON_PAGE, PAGE);
        let name = if self.number == "1" && name == DAEMON { COMMANDS } else { name };
        self.write(name, page.as_bytes(), names)
    }

    fn write(&self, name: &str, page: &[u8], names: &mut Vec<String>) -> Result<()> {
        let folder = self.folder.join(format!("man{}", self.number));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let path = folder.join(format!("{name}.{}", self.number));
        fs::write(&path, page).with_context(|| path.display().to_string())?;
        names.push(path.display().to_string());
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

/// Formats the examples of a command's help, with their lines unchanged.
fn examples_section(help: &str) -> String {
    let lines = help.strip_prefix("Examples:\n").unwrap_or(help).lines();
    let lines = lines.map(|line| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-")));
    format!(".SH EXAMPLES\n.nf\n{}.fi\n", lines.collect::<String>())
}
