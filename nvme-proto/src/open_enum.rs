//! Newtypes for codes on the wire, with named constants; values without a name are kept.

/// Declares a newtype over an unsigned integer with named constants. `Display` writes the
/// specification's name, or the number of a value without a name.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($repr:ty) {
            $($(#[$item:meta])* $constant:ident = $value:literal, $text:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        #[allow(dead_code, reason = "not every code is used as a field of a register")]
        impl $name {
            $(
                #[doc = concat!($text, ".")]
                $(#[$item])*
                pub const $constant: Self = Self($value);
            )*

            /// Returns the specification's name of the value; `None` if it has none.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$constant => Some($text),)*
                    _ => None,
                }
            }

            pub(crate) const fn into_bits(self) -> $repr {
                self.0
            }

            pub(crate) const fn from_bits(bits: $repr) -> Self {
                Self(bits)
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{:#04x}", self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{:#04x} ({name})", self.0),
                    None => write!(f, "{:#04x}", self.0),
                }
            }
        }
    };
}
