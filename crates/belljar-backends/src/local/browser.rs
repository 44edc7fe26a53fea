//! How Chromium is started inside a sandbox.

use std::{collections::BTreeMap, path::Path};

use belljar_jail::protocol::BrowserSpec;

use crate::templates::Browser;

/// Where one that is not below /usr is seen inside.
const ELSEWHERE: &str = "/opt/browser";
/// What the host's fontconfig knows of its fonts; without it every start would look at all of them.
const FONT_CACHE: &str = "/var/cache/fontconfig";

const FEATURES_OFF: &str = "Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider,InterestFeedContentSuggestions,\
                            CertificateTransparencyComponentUpdater,AutofillServerCommunication,GlobalMediaControls,\
                            DeferRendererTasksAfterInput";

/// Chromium's own sandbox is never turned off: there is no flag for that here.
const FLAGS: [&str; 30] = [
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    // /dev/shm is a quarter of the size of /tmp, and both are memory of the sandbox's.
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-pings",
    "--no-service-autorun",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-crash-reporter",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-quic",
    "--disable-sync",
    "--metrics-recording-only",
    "--mute-audio",
    "--hide-scrollbars",
    "--password-store=basic",
    "--force-color-profile=srgb",
    // A tab in the background goes on like any other: whoever drives it does not look at it.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    // Tabs share processes beyond this, which are few in a sandbox.
    "--renderer-process-limit=8",
    "--window-size=1280,800",
    // Else V8 begins with so little that reading a page of usual size has to wait for a collection of garbage.
    "--js-flags=--min-semi-space-size=16",
    // Nothing listens there while the sandbox has no network. What is on its own loopback is reached without it.
    "--proxy-server=http://127.0.0.1:3128",
];

pub(super) fn spec(browser: &Browser, bind: &mut impl FnMut(&Path, &str)) -> BrowserSpec {
    let cache = Path::new(FONT_CACHE);
    if cache.is_dir() {
        bind(cache, FONT_CACHE);
    }
    let program = if browser.executable.starts_with("/usr") {
        browser.executable.to_string_lossy().into_owned()
    } else {
        bind(browser.directory(), ELSEWHERE);
        let name = browser.executable.file_name().unwrap_or_default();
        format!("{ELSEWHERE}/{}", name.to_string_lossy())
    };
    let mut argv = vec![program];
    argv.extend(FLAGS.map(String::from));
    argv.push(format!("--disable-features={FEATURES_OFF}"));
    argv.push("--user-data-dir=/tmp/browser/profile-{id}".into());
    argv.push("about:blank".into());
    BrowserSpec { argv, env: environment() }
}

fn environment() -> BTreeMap<String, String> {
    [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/tmp/browser"),
        ("USER", "user"),
        ("LOGNAME", "user"),
        ("LANG", "C.UTF-8"),
        ("TZ", "UTC"),
        ("TMPDIR", "/tmp"),
        ("XDG_CACHE_HOME", "/tmp/browser/cache"),
        ("XDG_CONFIG_HOME", "/tmp/browser/config"),
    ]
    .map(|(k, v)| (k.to_string(), v.to_string()))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec_of(executable: &str) -> (BrowserSpec, Vec<(String, String)>) {
        let mut binds = Vec::new();
        let browser = Browser { executable: executable.into(), version: String::new() };
        let spec = spec(&browser, &mut |source: &Path, target: &str| {
            binds.push((source.to_string_lossy().into_owned(), target.to_string()));
        });
        binds.retain(|(_, target)| target != FONT_CACHE);
        (spec, binds)
    }

    #[test]
    fn chromiums_own_sandbox_stays_on() {
        let (spec, binds) = spec_of("/usr/lib/chromium/chromium-headless-shell");
        assert_eq!(spec.argv[0], "/usr/lib/chromium/chromium-headless-shell");
        assert_eq!(binds, []);
        let weakening =
            ["sandbox", "zygote", "single-process", "web-security", "allow-file-access", "debugging-port"];
        for flag in &spec.argv[1..] {
            assert!(!weakening.iter().any(|word| flag.contains(word)), "{flag}");
        }
    }

    #[test]
    fn a_browser_outside_usr_is_bound_with_its_data() {
        let (spec, binds) = spec_of("/home/ann/chrome/headless_shell");
        assert_eq!(spec.argv[0], "/opt/browser/headless_shell");
        assert_eq!(binds, [("/home/ann/chrome".to_string(), "/opt/browser".to_string())]);
    }
}
