"""versions.yaml -> rendered Dockerfile -> image -> measured manifest."""
