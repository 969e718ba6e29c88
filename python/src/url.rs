//! URLs of subsystems and namespaces, for `feedrail._url`.

use feedrail_dataset::Name;
use feedrail_dataset::url::{NamespaceChoice, SourceUrl, TargetUrl, UrlHost};
use nvme_proto::Nsid;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Host, port, NQN, and name or identifier of a namespace.
type UrlParts = (String, u16, String, Option<String>, Option<u32>);

/// Parses a URL; `ValueError` names the first rule that it violates.
#[pyfunction]
pub(crate) fn parse_url(url: &str) -> PyResult<UrlParts> {
    let parsed: SourceUrl = url.parse().map_err(|error| invalid(url, error))?;
    let (name, nsid) = match parsed.namespace {
        Some(NamespaceChoice::Name(name)) => (Some(name.as_str().to_owned()), None),
        Some(NamespaceChoice::Nsid(nsid)) => (None, Some(nsid.0)),
        None => (None, None),
    };
    let host = match parsed.target.host {
        UrlHost::Address(address) => address.to_string(),
        UrlHost::Name(name) => name.as_str().to_owned(),
    };
    Ok((host, parsed.target.port, parsed.nqn.as_str().to_owned(), name, nsid))
}

/// Returns the URL of parts, percent-encoded where necessary.
#[pyfunction]
pub(crate) fn format_url(parts: UrlParts) -> PyResult<String> {
    let (host, port, nqn, name, nsid) = parts;
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host };
    let mut target: TargetUrl =
        format!("nvmf://{bracketed}").parse().map_err(|error| invalid(&bracketed, error))?;
    target.port = port;
    let parsed = name.map(|name| name.parse::<Name>().map_err(|error| invalid(&name, error)));
    let namespace = match (parsed.transpose()?, nsid) {
        (Some(name), _) => Some(NamespaceChoice::Name(name)),
        (None, Some(nsid)) => Some(NamespaceChoice::Nsid(Nsid(nsid))),
        (None, None) => None,
    };
    let nqn = nqn.parse().map_err(|error| invalid(&nqn, error))?;
    Ok(SourceUrl { target, nqn, namespace }.to_string())
}

fn invalid(text: &str, error: impl ToString) -> PyErr {
    PyValueError::new_err(format!("{text:?}: {}", error.to_string()))
}
