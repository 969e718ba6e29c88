//! HTTP content negotiation of the metrics page (RFC 9110, section 12).

use crate::metrics::exposition::MetricsFormat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageContent {
    Metrics(MetricsFormat),
    /// The state of the target, as JSON.
    Status,
}

impl PageContent {
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Metrics(format) => format.media_type(),
            Self::Status => "application/json",
        }
    }
}

/// Content and coding of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageVariant {
    pub(super) content: PageContent,
    /// Whether the body is compressed with gzip.
    pub(super) gzip: bool,
}

impl PageVariant {
    /// Number of variants: three contents, each with and without gzip.
    pub(super) const COUNT: usize = 6;

    /// Returns the variant of the metrics that a request prefers (Accept, Accept-Encoding). Without
    /// a preference, or if the client accepts none, that is Prometheus text, uncompressed.
    pub(super) fn of_request(head: &[u8]) -> Self {
        let head = String::from_utf8_lossy(head);
        let format = format(&preferences(&head, "accept"));
        Self { content: PageContent::Metrics(format), gzip: takes_gzip(&head) }
    }

    /// Returns the variant of the state that a request prefers (Accept-Encoding).
    pub(super) fn status(head: &[u8]) -> Self {
        Self { content: PageContent::Status, gzip: takes_gzip(&String::from_utf8_lossy(head)) }
    }

    /// Index in an array of all variants, below [`PageVariant::COUNT`].
    pub(super) fn index(self) -> usize {
        let content = match self.content {
            PageContent::Metrics(MetricsFormat::Prometheus) => 0,
            PageContent::Metrics(MetricsFormat::OpenMetrics) => 1,
            PageContent::Status => 2,
        };
        2 * content + usize::from(self.gzip)
    }
}

/// Element of an Accept or Accept-Encoding header.
struct Preference<'a> {
    /// Element without its parameters, such as `text/plain` or `gzip`.
    value: &'a str,
    /// Parameter `version` of a media type.
    version: Option<&'a str>,
    /// Weight (`q`) in thousandths, 0 to 1000.
    quality: u16,
}

/// Preference for a format, ordered by weight, then by how exactly the header names the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Wish {
    quality: u16,
    exactness: u8,
}

impl<'a> Preference<'a> {
    /// Parses an element; `None` if it is malformed.
    fn parse(element: &'a str) -> Option<Self> {
        let mut parts = element.split(';').map(str::trim);
        let value = parts.next().filter(|value| !value.is_empty())?;
        let mut preference = Self { value, version: None, quality: 1000 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim() {
                "q" | "Q" => {
                    let quality = value.parse::<f32>().ok().filter(|q| (0.0..=1.0).contains(q))?;
                    preference.quality = (quality * 1000.0).round() as u16;
                }
                name if name.eq_ignore_ascii_case("version") => preference.version = Some(value),
                _ => {}
            }
        }
        Some(preference)
    }

    /// Rank of the element's match with a format, from 0 (`*/*`) to 3 (with version); `None`
    /// without a match.
    fn names(&self, format: MetricsFormat) -> Option<u8> {
        let (kind, subtype, version) = match format {
            MetricsFormat::Prometheus => ("text", "plain", "0.0.4"),
            MetricsFormat::OpenMetrics => ("application", "openmetrics-text", "1.0.0"),
        };
        let (of_kind, of_subtype) = self.value.split_once('/')?;
        match (of_kind, of_subtype) {
            ("*", "*") => Some(0),
            (of, "*") if of.eq_ignore_ascii_case(kind) => Some(1),
            (of, sub) if of.eq_ignore_ascii_case(kind) && sub.eq_ignore_ascii_case(subtype) => {
                match self.version {
                    None => Some(2),
                    Some(of_version) => (of_version == version).then_some(3),
                }
            }
            _ => None,
        }
    }
}

/// Elements of all headers with this name.
fn preferences<'a>(head: &'a str, name: &str) -> Vec<Preference<'a>> {
    let headers = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    let named = headers.filter(|(header, _)| header.trim().eq_ignore_ascii_case(name));
    named.flat_map(|(_, list)| list.split(',')).filter_map(Preference::parse).collect()
}

fn format(accepted: &[Preference<'_>]) -> MetricsFormat {
    // The element that names a format most exactly determines its weight.
    let wish = |format| {
        let named = accepted.iter().filter_map(|one| Some((one.names(format)?, one.quality)));
        named.max().map_or(Wish::default(), |(exactness, quality)| Wish { quality, exactness })
    };
    let newer = wish(MetricsFormat::OpenMetrics);
    match newer.quality > 0 && newer > wish(MetricsFormat::Prometheus) {
        true => MetricsFormat::OpenMetrics,
        false => MetricsFormat::Prometheus,
    }
}

fn takes_gzip(head: &str) -> bool {
    let codings = preferences(head, "accept-encoding");
    let quality = |names: &[&str]| {
        let named =
            |one: &&Preference<'_>| names.iter().any(|name| one.value.eq_ignore_ascii_case(name));
        codings.iter().filter(named).map(|one| one.quality).max()
    };
    let gzip = quality(&["gzip", "x-gzip"]).unwrap_or(0);
    gzip > 0 && quality(&["identity"]).is_none_or(|plain| gzip >= plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(headers: &str) -> PageVariant {
        PageVariant::of_request(format!("GET /metrics HTTP/1.1\r\n{headers}").as_bytes())
    }

    #[test]
    fn the_format_is_the_one_that_a_client_prefers() {
        const NEWER: &str = "application/openmetrics-text";
        for (accept, newer) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("text/html", false),
            ("application/openmetrics-text", true),
            ("application/openmetrics-text; version=\"1.0.0\"", true),
            ("application/openmetrics-text;version=0.0.1", false),
            ("APPLICATION/OpenMetrics-Text;Version=1.0.0;Q=0.5", true),
            // Sent by versions of Prometheus.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                 version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                true,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                true,
            ),
            (
                "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;\
                 q=0.1",
                false,
            ),
            ("text/plain;version=0.0.4;q=0.3, application/openmetrics-text;q=0.2", false),
            ("text/plain;q=0.2, application/openmetrics-text;q=0.3", true),
            ("text/*;q=0, application/*;q=0.001", true),
            ("application/openmetrics-text;q=0, */*", false),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-text;q=2", false),
            ("application/openmetrics-text;q=NaN", false),
            // The more exact one of two with equal weights.
            ("application/openmetrics-text, */*", true),
            ("application/*, text/plain", false),
            (", ;q=1, application/openmetrics-text", true),
        ] {
            let expected =
                if newer { MetricsFormat::OpenMetrics } else { MetricsFormat::Prometheus };
            assert_eq!(
                variant(&format!("Accept: {accept}")).content,
                PageContent::Metrics(expected),
                "{accept}"
            );
        }
        assert_eq!(variant("Host: a").content, PageContent::Metrics(MetricsFormat::Prometheus));
        let several = format!("aCCept: text/plain;q=0.1\r\nHost: a\r\nAccept:{NEWER}");
        assert_eq!(variant(&several).content, PageContent::Metrics(MetricsFormat::OpenMetrics));
        assert_eq!(
            variant(&format!("X-Accept: {NEWER}")).content,
            PageContent::Metrics(MetricsFormat::Prometheus)
        );
    }

    #[test]
    fn gzip_is_for_those_that_name_it() {
        for (coding, gzip) in [
            ("gzip", true),
            ("deflate, GZip;q=0.5", true),
            ("x-gzip", true),
            ("gzip;q=0", false),
            ("gzip;q=0.5, identity", false),
            ("gzip, identity;q=0.5", true),
            ("identity", false),
            ("br, zstd", false),
            ("", false),
        ] {
            assert_eq!(variant(&format!("Accept-Encoding: {coding}")).gzip, gzip, "{coding}");
        }
        assert!(!variant("Host: a").gzip);
    }

    #[test]
    fn each_variant_has_a_place() {
        let metrics = [MetricsFormat::Prometheus, MetricsFormat::OpenMetrics];
        let contents = metrics.map(PageContent::Metrics).into_iter().chain([PageContent::Status]);
        let places = |content| [false, true].map(|gzip| PageVariant { content, gzip }.index());
        let mut places: Vec<_> = contents.flat_map(places).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..PageVariant::COUNT));
    }

    proptest::proptest! {
        #[test]
        fn any_head_has_a_variant(head in proptest::collection::vec(0..=255_u8, 0..500)) {
            PageVariant::of_request(&head);
        }
    }
}
