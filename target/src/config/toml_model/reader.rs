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
    pub(super) fn nqn(&self, text: &Spanned<String>) -> Result<Nqn, ConfigError> {
        quick::parse_nqn(text.get_ref())
            .map_err(|message| self.document.error(text.span().start, message))
    }

    pub(super) fn host(&self, text: &Spanned<String>) -> Result<Nqn, ConfigError> {
        quick::parse_host(text.get_ref())
            .map_err(|message| self.document.error(text.span().start, message))
    }
}
