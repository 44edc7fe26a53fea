//! What describes an image: the documents of the OCI and of Docker, as much of them as we need.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use crate::{ImageError, Result, stream::digest_text};

/// Of one document.
pub(crate) const MAX_DOCUMENT: u64 = 4 << 20;
/// More cannot be mounted on top of each other.
pub(crate) const MAX_LAYERS: usize = 120;
/// All variables together: they travel in one packet.
const MAX_ENVIRONMENT: usize = 16 << 10;

pub(crate) const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
}

/// An image, or a list of images for several platforms: whichever has its fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) schema_version: u32,
    pub(crate) config: Option<Descriptor>,
    #[serde(default)]
    pub(crate) layers: Vec<Descriptor>,
    #[serde(default)]
    pub(crate) manifests: Vec<Descriptor>,
}

/// The image's own settings.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) config: Option<Process>,
    #[serde(default)]
    pub(crate) rootfs: Option<RootFs>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Process {
    pub(crate) env: Option<Vec<String>>,
    pub(crate) working_dir: Option<String>,
    pub(crate) user: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct RootFs {
    #[serde(default)]
    pub(crate) diff_ids: Vec<String>,
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| ImageError::new(format!("{what} cannot be read: {error}")))
}

/// Fails unless these are the bytes that were meant.
pub(crate) fn verify(bytes: &[u8], digest: &str, what: &str) -> Result<()> {
    let found = digest_text(Sha256::new_with_prefix(bytes));
    same(&found, digest, what)
}

pub(crate) fn same(found: &str, digest: &str, what: &str) -> Result<()> {
    if found == digest {
        return Ok(());
    }
    Err(ImageError::new(format!("{what} has the digest {found}, not {}", printable(digest)))
        .hint("it was damaged or changed on its way; nothing of it is kept"))
}

/// `sha256:` and 64 lower-case digits, the only form that is understood: names of directories are made of it.
pub(crate) fn hex_of(digest: &str) -> Result<&str> {
    let hex = digest.strip_prefix("sha256:").filter(|hex| {
        hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    });
    hex.ok_or_else(|| ImageError::new(format!("{} is no SHA-256 digest", printable(digest))))
}

/// What others wrote, fit for a message.
pub(crate) fn printable(text: &str) -> String {
    let short: String = text.chars().take(120).collect();
    format!("{short:?}")
}

pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Manifest {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let manifest: Self = parse(bytes, "the image's manifest")?;
        if manifest.schema_version != 2 {
            return Err(ImageError::new(format!("the manifest is of version {}", manifest.schema_version))
                .hint("only version 2 is understood: push the image again with a newer tool"));
        }
        Ok(manifest)
    }

    /// The entry of a list that runs on this machine.
    pub(crate) fn for_this_machine(&self) -> Result<&Descriptor> {
        let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture();
        // Attestations are listed beside images, for no platform.
        if let [only] = &self.manifests[..]
            && only.platform.is_none()
        {
            return Ok(only);
        }
        let found = self.manifests.iter().find(|entry| entry.platform.as_ref().is_some_and(fits));
        found.ok_or_else(|| {
            let platforms = self.manifests.iter().filter_map(|entry| entry.platform.as_ref()).take(20);
            let names: Vec<_> =
                platforms.map(|p| printable(&format!("{}/{}", p.os, p.architecture))).collect();
            ImageError::new(format!(
                "the image is not for linux/{}, only for {}",
                architecture(),
                names.join(", ")
            ))
            .hint("choose an image for this machine's kind of processor")
        })
    }

    /// Settings and layers of an image.
    pub(crate) fn image(self) -> Result<(Descriptor, Vec<Descriptor>)> {
        let config = self.config.ok_or_else(|| ImageError::new("the manifest describes no image"))?;
        if self.layers.is_empty() || self.layers.len() > MAX_LAYERS {
            let count = self.layers.len();
            return Err(ImageError::new(format!(
                "the image has {count} layers; 1 to {MAX_LAYERS} can be used"
            ))
            .hint("docker export makes one layer of all"));
        }
        for descriptor in self.layers.iter().chain([&config]) {
            hex_of(&descriptor.digest)?;
        }
        Ok((config, self.layers))
    }
}

impl Config {
    /// Whether it can run here, and whether it says of each layer what it unpacks to.
    pub(crate) fn check(&self, layers: usize) -> Result<()> {
        if (self.os.as_str(), self.architecture.as_str()) != ("linux", architecture()) {
            let platform = printable(&format!("{}/{}", self.os, self.architecture));
            return Err(ImageError::new(format!(
                "the image is for {platform}, not for linux/{}",
                architecture()
            ))
            .hint("choose an image for this machine's kind of processor"));
        }
        let told = self.diff_ids();
        if told.len() != layers {
            return Err(ImageError::new(format!(
                "the image has {layers} layers and says that it has {}",
                told.len()
            )));
        }
        told.iter().try_for_each(|digest| hex_of(digest).map(drop))
    }

    pub(crate) fn diff_ids(&self) -> &[String] {
        self.rootfs.as_ref().map_or(&[], |rootfs| &rootfs.diff_ids)
    }

    pub(crate) fn environment(&self) -> Result<BTreeMap<String, String>> {
        let lines = self.config.iter().flat_map(|process| process.env.iter().flatten());
        let mut variables = BTreeMap::new();
        let mut size = 0;
        for line in lines {
            size += line.len() + 8;
            let Some((name, value)) = line.split_once('=') else { continue };
            if name.is_empty() || line.contains('\0') {
                return Err(ImageError::new(format!(
                    "the image sets the impossible variable {}",
                    printable(line)
                )));
            }
            variables.insert(name.to_owned(), value.to_owned());
        }
        if size > MAX_ENVIRONMENT {
            return Err(ImageError::new(format!(
                "the image's environment has {size} bytes, more than {MAX_ENVIRONMENT}"
            )));
        }
        Ok(variables)
    }

    /// Where its programs start: absolute, and without detours.
    pub(crate) fn workdir(&self) -> Result<Option<String>> {
        let given =
            self.config.as_ref().and_then(|process| process.working_dir.as_deref()).unwrap_or_default();
        clean_workdir(given)
    }

    pub(crate) fn user(&self) -> Option<String> {
        let user = self.config.as_ref()?.user.as_deref()?;
        let fine = !user.is_empty() && user.len() <= 64 && user.chars().all(|c| c.is_ascii_graphic());
        fine.then(|| user.to_owned())
    }
}

/// `None` for the root, where nothing can be written and nobody means to start.
pub(crate) fn clean_workdir(given: &str) -> Result<Option<String>> {
    let parts: Vec<_> = given.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.is_empty() {
        return Ok(None);
    }
    if !given.starts_with('/')
        || parts.contains(&"..")
        || given.len() > 1024
        || given.contains(char::is_control)
    {
        return Err(ImageError::new(format!("{} cannot be a working directory", printable(given))));
    }
    Ok(Some(format!("/{}", parts.join("/"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_digests_name_things() {
        let digits = "0123456789abcdef".repeat(4);
        assert_eq!(hex_of(&format!("sha256:{digits}")).unwrap(), digits);
        for bad in [
            "",
            "sha256:",
            "sha256:../../etc",
            &digits,
            &format!("sha512:{digits}"),
            &format!("sha256:{}", digits.to_uppercase()),
        ] {
            assert!(hex_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_working_directory_is_a_plain_path() {
        assert_eq!(clean_workdir("/app//./src/").unwrap().as_deref(), Some("/app/src"));
        assert_eq!(clean_workdir("").unwrap(), None);
        assert_eq!(clean_workdir("/").unwrap(), None);
        assert!(clean_workdir("/app/../../etc").is_err() && clean_workdir("app").is_err());
    }

    #[test]
    fn the_list_has_one_for_this_machine_or_says_which_it_has() {
        let list = |architecture: &str| {
            let digest = format!("sha256:{}", "0".repeat(64));
            let text = serde_json::json!({"schemaVersion": 2, "manifests": [
                {"digest": digest, "size": 1, "platform": {"os": "unknown", "architecture": "unknown"}},
                {"digest": digest, "size": 2, "platform": {"os": "linux", "architecture": architecture}}]});
            Manifest::parse(text.to_string().as_bytes()).unwrap()
        };
        assert_eq!(list(architecture()).for_this_machine().unwrap().size, 2);
        let error = list("s390x").for_this_machine().unwrap_err();
        assert!(error.message.contains("linux/s390x"), "{error}");
    }
}
