//! Counter structs that one macro declares, with their sum and with names and help texts for
//! exporters.

/// Name and documentation of one counter of a [`CounterSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterInfo {
    /// Name of the counter, with the unit last unless it is a plain number.
    pub name: &'static str,
    /// Documentation of the field: what the counter counts.
    pub help: &'static str,
}

impl CounterInfo {
    /// A counter with this name and the text of its `///` comment.
    #[doc(hidden)]
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help: help.trim_ascii() }
    }
}

/// A struct of counters with names and help texts, for exporters. `+=` adds the counters of several
/// sources.
pub trait CounterSet: core::ops::AddAssign + Default {
    /// All counters, in the order of their declaration.
    const COUNTERS: &'static [CounterInfo];

    /// Each counter and its value, in the order of [`CounterSet::COUNTERS`].
    fn values(&self) -> impl Iterator<Item = (&'static CounterInfo, u64)>;
}

/// Declares a struct of counters, which is a [`CounterSet`](crate::CounterSet).
#[doc(hidden)]
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[doc = $help:literal])+ $field:ident,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $visibility struct $name {
            $($(#[doc = $help])+ $visibility $field: u64,)+
        }

        impl ::core::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)+
            }
        }

        impl $crate::CounterSet for $name {
            const COUNTERS: &'static [$crate::CounterInfo] =
                &[$($crate::CounterInfo::new(stringify!($field), concat!($($help),+))),+];

            fn values(&self) -> impl Iterator<Item = (&'static $crate::CounterInfo, u64)> {
                <Self as $crate::CounterSet>::COUNTERS.iter().zip([$(self.$field),+])
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        struct TwoCounters {
            /// Things that came until now.
            arrivals,
            /// Bytes that came with them,
            /// headers included.
            arrived_bytes,
        }
    }

    #[test]
    fn one_declaration_gives_sum_and_names() {
        let mut sum = TwoCounters::default();
        sum += TwoCounters { arrivals: 1, arrived_bytes: 10 };
        sum += TwoCounters { arrivals: 2, arrived_bytes: 20 };
        let values: Vec<_> = sum.values().map(|(info, value)| (info.name, value)).collect();
        assert_eq!(values, [("arrivals", 3), ("arrived_bytes", 30)]);
        let help = TwoCounters::COUNTERS[1].help;
        assert_eq!(help, "Bytes that came with them, headers included.");
    }
}
