mkdir -p /var/log/belljar
