//! What the table of settings is made of, and the macro that makes the types out of it.

use super::codec::Shape;
use super::node::{Node, Rejections};
use super::settings::Config;

/// One setting: a line of the table.
pub struct Setting {
    /// The key with its table: `engine.op_timeout`.
    pub key: &'static str,
    /// What it does, one or more lines.
    pub doc: &'static str,
    /// A value other than the default, as written in a file.
    pub example: &'static str,
    /// Where it may be set and who must agree on it.
    pub reach: Reach,
    pub(super) accepted: fn() -> String,
    pub(super) shape: fn() -> Shape,
    pub(super) assign: fn(&mut Config, &Node) -> Result<(), Rejections>,
    pub(super) show: fn(&Config) -> Option<String>,
    pub(super) file_form: fn(&Config) -> Option<String>,
    pub(super) list_entries: fn(&Config) -> Vec<(String, String)>,
}

impl Setting {
    /// The setting with this key.
    pub fn find(key: &str) -> Option<&'static Self> {
        super::SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// What is accepted, to follow "expected".
    pub fn accepted(&self) -> String {
        (self.accepted)()
    }

    /// The text of its value in `config`, as the environment would give it; `None` if not set.
    pub fn value(&self, config: &Config) -> Option<String> {
        (self.show)(config)
    }

    /// Its value in `config` as a file gives it; `None` if not set.
    pub fn toml(&self, config: &Config) -> Option<String> {
        (self.file_form)(config)
    }
}

/// Where a setting may be set and who must agree on it.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// The environment variable.
    pub environment: Option<&'static str>,
    /// Whether a file may set it. The API always may.
    pub file: bool,
    /// Whether it must be the same on all ranks.
    pub agreed: bool,
    /// Whether the environment is not believed in a process with raised privileges (setuid).
    pub guarded: bool,
}

/// A setting of file, environment and API.
pub(super) const fn variable(environment: &'static str) -> Reach {
    Reach { environment: Some(environment), file: true, agreed: false, guarded: false }
}

/// A setting of file and API only.
pub(super) const fn no_variable() -> Reach {
    Reach { environment: None, file: true, agreed: false, guarded: false }
}

impl Reach {
    /// It must be the same on all ranks.
    pub(super) const fn agreed(mut self) -> Self {
        self.agreed = true;
        self
    }

    /// A file may not set it.
    pub(super) const fn not_in_file(mut self) -> Self {
        self.file = false;
        self
    }

    /// The environment may not set it where the process has raised privileges.
    pub(super) const fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }
}

/// Makes the typed structs, [`Config`] and the table out of one list:
/// `field: Type = default; codec; example; reach;`.
macro_rules! settings {
    (
        sections { $(
            $(#[doc = $section_doc:literal])+
            $section:ident: $Section:ident { $(
                $(#[doc = $doc:literal])+
                $field:ident: $Type:ty = $default:expr; $codec:expr; $example:literal; $reach:expr;
            )+ }
        )+ }
        tables { $(
            $(#[doc = $table_doc:literal])+
            $table:ident: $Table:ty = $table_default:expr; $table_codec:expr; $table_example:literal; $table_reach:expr;
        )+ }
    ) => {
        $(
            $(#[doc = $section_doc])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $Section { $(
                $(#[doc = $doc])+
                pub $field: $Type,
            )+ }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $( $field: $default, )+ }
                }
            }
        )+

        /// Every setting with its value, typed; made by [`Config::load`].
        #[derive(Clone, Debug)]
        pub struct Config {
            $( $(#[doc = $section_doc])+ pub $section: $Section, )+
            $( $(#[doc = $table_doc])+ pub $table: $Table, )+
            pub(super) origins: $crate::config::load::Origins,
        }

        impl Default for Config {
            fn default() -> Self {
                Self {
                    $( $section: $Section::default(), )+
                    $( $table: $table_default, )+
                    origins: Default::default(),
                }
            }
        }

        /// The table that all else is made of: one line a setting.
        pub static SETTINGS: &[Setting] = &[
            $( $( Setting {
                key: concat!(stringify!($section), ".", stringify!($field)),
                doc: concat!($($doc, "\n"),+),
                example: $example,
                reach: $reach,
                accepted: || Codec::accepted(&$codec),
                shape: || Codec::shape(&$codec),
                assign: |config, node| Codec::assign(&$codec, &mut config.$section.$field, node),
                show: |config| Codec::show(&$codec, &config.$section.$field),
                file_form: |config| Codec::toml(&$codec, &config.$section.$field),
                list_entries: |config| Codec::entries(&$codec, &config.$section.$field),
            }, )+ )+
            $( Setting {
                key: stringify!($table),
                doc: concat!($($table_doc, "\n"),+),
                example: $table_example,
                reach: $table_reach,
                accepted: || Codec::accepted(&$table_codec),
                shape: || Codec::shape(&$table_codec),
                assign: |config, node| Codec::assign(&$table_codec, &mut config.$table, node),
                show: |config| Codec::show(&$table_codec, &config.$table),
                file_form: |config| Codec::toml(&$table_codec, &config.$table),
                list_entries: |config| Codec::entries(&$table_codec, &config.$table),
            }, )+
        ];

        /// Name and purpose of every section.
        pub(super) static SECTIONS: &[(&str, &str)] =
            &[ $( (stringify!($section), concat!($($section_doc, "\n"),+)), )+ ];
    };
}
pub(super) use settings;
