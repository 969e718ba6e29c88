//! Document that is being converted, and names in it.

use nvme_proto::Nqn;
use toml::Spanned;

use crate::config::ConfigError;
use crate::config::document::Document;
use crate::config::quick;
use crate::derived_ids::Machine;

/// Converts the tables of a document to a [`Config`]. Errors contain positions in the document.
pub(super) struct Reader<'a> {
    pub(super) document: Document<'a>,
    pub(super) machine: Machine,
    /// Whether there is a management socket, so that exports can be added at run time.
    pub(super) managed: bool,
}

impl Reader<'_> {
    /// Checks a text. The error has its place in the document.
    pub(super) fn checked<T, E: ToString>(
        &self,
        text: &Spanned<String>,
        check: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, ConfigError> {
        check(text.get_ref())
            .map_err(|error| self.document.error(text.span().start, error.to_string()))
    }

    pub(super) fn nqn(&self, text: &Spanned<String>) -> Result<Nqn, ConfigError> {
        self.checked(text, quick::parse_nqn)
    }

    pub(super) fn host(&self, text: &Spanned<String>) -> Result<Nqn, ConfigError> {
        self.checked(text, quick::parse_host)
    }
}
