//! Secrets of in-band authentication.

use std::path::PathBuf;

use feedrail_auth::{Secret, read_key_file};
use feedrail_initiator::ControllerOptions;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
use crate::seconds::Seconds;

/// Keys or key files of both sides, and when the host authenticates again, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SecretOptions {
    dhchap_secret: Option<String>,
    dhchap_secret_file: Option<PathBuf>,
    dhchap_ctrl_secret: Option<String>,
    dhchap_ctrl_secret_file: Option<PathBuf>,
    reauth_period: Option<Seconds>,
}

impl SecretOptions {
    /// Adds the secrets to options, which reads their files.
    ///
    /// # Errors
    /// `ValueError` for a text that is no key, and `AuthenticationError` for a file that is
    /// refused.
    pub(crate) fn add_to(
        &self,
        py: Python<'_>,
        mut options: ControllerOptions,
    ) -> PyResult<ControllerOptions> {
        let secret = |name: &str, text: &Option<String>, file: &Option<PathBuf>| match (text, file)
        {
            (Some(text), _) => parse(name, text).map(Some),
            (None, Some(path)) => match py.detach(|| read_key_file(path)) {
                Ok(secret) => Ok(Some(secret)),
                Err(error) => Err(errors::not_authenticated(py, error.to_string())),
            },
            (None, None) => Ok(None),
        };
        let host = secret("dhchap_secret", &self.dhchap_secret, &self.dhchap_secret_file)?;
        let (text, file) = (&self.dhchap_ctrl_secret, &self.dhchap_ctrl_secret_file);
        let controller = secret("dhchap_ctrl_secret", text, file)?;
        if let Some(host) = host {
            options = options.dhchap_secret(host);
        }
        if let Some(controller) = controller {
            options = options.dhchap_ctrl_secret(controller);
        }
        if let Some(Seconds(period)) = self.reauth_period {
            options = options.reauth_period(period);
        }
        Ok(options)
    }
}

fn parse(name: &str, text: &str) -> PyResult<Secret> {
    text.trim().parse().map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}
