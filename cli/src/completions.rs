//! `feedrail completions`: prints completion scripts for shells.

use anyhow::Result;
use clap::{Args, Command, CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use crate::args::Cli;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail completions bash > ~/.local/share/bash-completion/completions/feedrail
  feedrail completions bash feedrail-target > ~/.local/share/bash-completion/completions/feedrail-target
  feedrail completions zsh > ~/.zfunc/_feedrail";

/// Prints a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Shell that reads the script
    #[arg(value_enum)]
    shell: Shell,
    /// Program whose command line is completed
    #[arg(value_enum, default_value_t = ProgramArg::Feedrail)]
    program: ProgramArg,
}

/// Program whose command line is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProgramArg {
    Feedrail,
    FeedrailTarget,
}

impl ProgramArg {
    fn command(self) -> Command {
        match self {
            Self::Feedrail => Cli::command(),
            Self::FeedrailTarget => feedrail_target::daemon::command(),
        }
    }
}

impl CompletionsArgs {
    pub(crate) fn run(self) -> Result<()> {
        let mut command = self.program.command();
        let name = command.get_name().to_owned();
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut text);
        output::print(&String::from_utf8_lossy(&text))
    }
}
