//! Text formats that Prometheus reads: metric families, each with samples that have labels.

use std::fmt::Write as _;

use super::latency::LatencyStats;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    /// Text format 0.0.4 of Prometheus, which all of its versions and most other readers accept.
    Prometheus,
    /// OpenMetrics 1.0, which has units and an end mark.
    OpenMetrics,
}

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// Metrics text that is being written.
pub(super) struct Exposition {
    format: MetricsFormat,
    text: String,
}

pub(super) type Label<'a> = (&'static str, &'a str);

impl MetricsFormat {
    /// Media type for the HTTP header Content-Type.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl MetricKind {
    /// Returns the word for the type in a format, and the suffix of the names of its samples.
    fn in_format(self, format: MetricsFormat) -> (&'static str, &'static str) {
        match (self, format) {
            (Self::Counter, _) => ("counter", "_total"),
            (Self::Gauge, _) => ("gauge", ""),
            (Self::Histogram, _) => ("histogram", ""),
            (Self::Info, MetricsFormat::OpenMetrics) => ("info", "_info"),
            (Self::Info, MetricsFormat::Prometheus) => ("gauge", "_info"),
        }
    }
}

impl Exposition {
    pub(super) fn new(format: MetricsFormat) -> Self {
        Self { format, text: String::new() }
    }

    /// Returns the complete text. OpenMetrics marks the end, so that readers notice a truncated
    /// text.
    pub(super) fn end(mut self) -> String {
        if self.format == MetricsFormat::OpenMetrics {
            self.text += "# EOF\n";
        }
        self.text
    }

    /// Writes the TYPE, UNIT and HELP lines of a family, and returns the name of its samples. The
    /// unit is the last word of the family's name. The Prometheus format names the samples instead
    /// of the family, and has no UNIT line.
    pub(super) fn family(&mut self, kind: MetricKind, name: &str, help: &str) -> String {
        let (word, suffix) = kind.in_format(self.format);
        let samples = format!("{name}{suffix}");
        match self.format {
            MetricsFormat::Prometheus => {
                // The Prometheus format does not escape quotes in HELP.
                let help = help.replace('\\', "\\\\").replace('\n', "\\n");
                let _ = writeln!(self.text, "# HELP {samples} {help}");
                let _ = writeln!(self.text, "# TYPE {samples} {word}");
            }
            MetricsFormat::OpenMetrics => {
                let units = ["bytes", "seconds"];
                let unit = units.into_iter().find(|unit| name.rsplit('_').next() == Some(*unit));
                let _ = writeln!(self.text, "# TYPE {name} {word}");
                if let Some(unit) = unit {
                    let _ = writeln!(self.text, "# UNIT {name} {unit}");
                }
                let _ = writeln!(self.text, "# HELP {name} {}", escaped(help));
            }
        }
        samples
    }

    /// Writes a family with one sample without labels.
    pub(super) fn single(&mut self, kind: MetricKind, name: &str, help: &str, value: u64) {
        let samples = self.family(kind, name, help);
        self.sample(&samples, &[], value);
    }

    pub(super) fn sample(
        &mut self,
        name: &str,
        labels: &[Label<'_>],
        value: impl std::fmt::Display,
    ) {
        self.text += name;
        for (at, (label, value)) in labels.iter().enumerate() {
            let opening = if at == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{opening}{label}=\"{}\"", escaped(value));
        }
        let closing = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{closing} {value}");
    }

    /// Writes the samples of a histogram.
    pub(super) fn histogram(&mut self, name: &str, labels: &[Label<'_>], stats: &LatencyStats) {
        let bucket = format!("{name}_bucket");
        for (micros, below) in stats.cumulative() {
            let bound = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), below);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), stats.count());
        self.sample(&format!("{name}_count"), labels, stats.count());
        let sum = stats.sum();
        let seconds = format_args!("{}.{:09}", sum.as_secs(), sum.subsec_nanos());
        self.sample(&format!("{name}_sum"), labels, seconds);
    }
}

/// Escapes a label value, or OpenMetrics help, for its place between quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: MetricsFormat) -> String {
        let mut exposition = Exposition::new(format);
        exposition.single(MetricKind::Counter, "a_bytes", "Of \"a\"\\.", 1);
        exposition.single(MetricKind::Info, "b", "B.", 1);
        exposition.family(MetricKind::Gauge, "c_seconds", "C.");
        exposition.sample("c_seconds", &[("name", "x \"y\"\\\nz")], 2);
        exposition.end()
    }

    #[test]
    fn each_format_names_families_its_own_way() {
        let older = "# HELP a_bytes_total Of \"a\"\\\\.\n# TYPE a_bytes_total counter\n\
                     a_bytes_total 1\n# HELP b_info B.\n# TYPE b_info gauge\nb_info 1\n\
                     # HELP c_seconds C.\n# TYPE c_seconds gauge\n\
                     c_seconds{name=\"x \\\"y\\\"\\\\\\nz\"} 2\n";
        assert_eq!(text(MetricsFormat::Prometheus), older);
        let newer = "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                     # HELP a_bytes Of \\\"a\\\"\\\\.\na_bytes_total 1\n\
                     # TYPE b info\n# HELP b B.\nb_info 1\n\
                     # TYPE c_seconds gauge\n# UNIT c_seconds seconds\n# HELP c_seconds C.\n\
                     c_seconds{name=\"x \\\"y\\\"\\\\\\nz\"} 2\n# EOF\n";
        assert_eq!(text(MetricsFormat::OpenMetrics), newer);
    }
}
