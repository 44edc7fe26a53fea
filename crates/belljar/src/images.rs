//! The templates that `belljar template` added, as sandboxes are made of them.

use std::path::Path;

use belljar_images::{BackendKind, Store, Template};
use belljar_sandbox::{Catalogue, Image, Language, TemplateInfo};

/// Read anew each time: another process may have added one.
pub(crate) struct Images(Store);

impl Images {
    pub(crate) fn below(home: &Path) -> Self {
        Self(Store::below(home))
    }

    fn info(&self, template: Template) -> Option<TemplateInfo> {
        let image = match template.backend {
            BackendKind::Local => {
                let layers = template.layers.iter().map(|layer| self.0.layer(layer).ok());
                Image::Layers(layers.collect::<Option<_>>()?)
            }
            BackendKind::Docker => Image::Docker(template.engine_image?),
        };
        let language = |name: &String| match name.as_str() {
            "python" => Some(Language::Python),
            "javascript" => Some(Language::Javascript),
            _ => None,
        };
        Some(TemplateInfo {
            name: template.name,
            image,
            env: template.env.into_iter().collect(),
            workdir: template.workdir,
            user: template.user,
            languages: template.languages.iter().filter_map(language).collect(),
        })
    }
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Images")
    }
}

impl Catalogue for Images {
    fn all(&self) -> Vec<TemplateInfo> {
        let templates = self.0.list().unwrap_or_else(|error| {
            tracing::warn!("the templates cannot be read: {error}");
            Vec::new()
        });
        templates.into_iter().filter_map(|template| self.info(template)).collect()
    }

    fn find(&self, name: &str) -> Option<TemplateInfo> {
        self.0.get(name).ok().and_then(|template| self.info(template))
    }
}
