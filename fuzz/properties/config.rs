//! Any text is a config or an error; a config reads back from what it prints. A test of the
//! server runs this, too.

use tidegate_config::Secret;
use tidegate_server::settings::parse;

pub(crate) fn check(text: &str) {
    match parse(text, "tidegate.toml", None) {
        Ok((server, config)) => {
            // `policies = []` comes before any table.
            let printed = format!("{config}{server}{}", server.envoy);
            let read = parse(&printed, "tidegate.toml", None);
            let (mut read, mut stores_and_policies) = read.expect("what was printed is right");
            // Secrets are not printed.
            restore(&mut read.admin_token, &server.admin_token);
            restore(&mut read.resp_token, &server.resp_token);
            for (name, store) in &mut stores_and_policies.stores {
                let Some(original) = config.stores.get(name) else {
                    continue;
                };
                restore(&mut store.password, &original.password);
                if store.url.to_string() == original.url.to_string() {
                    store.url = original.url.clone();
                }
            }
            assert_eq!((read, stores_and_policies), (server, config), "{printed}");
        }
        Err(errors) => {
            let lines = text.split('\n').count();
            for error in errors.as_slice() {
                assert!((1..=lines).contains(&error.line), "{error}");
                assert!(!error.to_string().contains(char::is_control), "{error:?}");
            }
        }
    }
}

fn restore(read: &mut Option<Secret>, original: &Option<Secret>) {
    if let Some(Secret::Text(_)) = original {
        read.clone_from(original);
    }
}
