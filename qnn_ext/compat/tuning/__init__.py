"""autotvm's names over qnn_ext.autotune: kernels are other ones, so that logs are too, and templates are gone."""
