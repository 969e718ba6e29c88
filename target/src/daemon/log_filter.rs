//! Log filter, checked for levels that do not exist.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// `info`, or `warn,feedrail_target::controller=debug`: a level, and levels of modules.
///
/// `EnvFilter` alone takes a bare word that is no level as a module's name, so that a misspelt
/// level would silence everything else. Here a bare word must be a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// Reason that a text is not a log filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilterError(String);

impl fmt::Display for LogFilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; use error, warn, info, debug, trace or off, or MODULE=LEVEL, separated by commas",
            self.0
        )
    }
}

impl std::error::Error for LogFilterError {}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        let bare = |part: &&str| !part.is_empty() && !part.contains(['=', '[']);
        let unknown = |part: &&str| part.parse::<LevelFilter>().is_err();
        if let Some(word) = text.split(',').map(str::trim).filter(bare).find(unknown) {
            return Err(LogFilterError(format!("`{word}` is not a log level")));
        }
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(LogFilterError(format!("`{text}` is not a log filter: {error}"))),
        }
    }
}

impl LogFilter {
    /// Filter for the `tracing` subscriber.
    pub fn to_filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

/// Whether a log may have colours: `NO_COLOR` is unset or empty (no-color.org).
pub fn colours_are_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_modules_are_taken() {
        for text in ["info", "WARN", "off", "3", "warn,feedrail_target=debug", "rdma[qp]=trace", ""]
        {
            assert!(text.parse::<LogFilter>().is_ok(), "{text}");
        }
    }

    #[test]
    fn a_misspelt_level_is_an_error() {
        for text in ["wran", "info,wran", "feedrail_target=wran", "verbose", "6"] {
            let error = text.parse::<LogFilter>().expect_err(text).to_string();
            assert!(error.contains("error, warn, info"), "{error}");
        }
    }
}
