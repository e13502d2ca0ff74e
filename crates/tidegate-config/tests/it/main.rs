//! The config file: what is read, what is refused, what is printed. The section
//! `[server]` has its tests in `tidegate-server`.

mod properties;
mod random;
mod read;
mod secrets;
mod sizes;
mod wrong;

use tidegate::Limit;
use tidegate_config::Config;

/// All error messages of a wrong file.
fn errors(text: &str) -> String {
    match text.parse::<Config>() {
        Ok(config) => panic!("this is right:\n{text}\nand means:\n{config}"),
        Err(errors) => errors.to_string(),
    }
}

/// What a right file says.
fn config(text: &str) -> Config {
    match text.parse() {
        Ok(config) => config,
        Err(errors) => panic!("{errors}\nin:\n{text}"),
    }
}

/// The limit of a policy with these fields.
fn limit_of(fields: &str) -> Limit {
    let config = config(&format!("[[policies]]\nname = \"login\"\n{fields}"));
    *config.policies[0].levels()[0].limit()
}
