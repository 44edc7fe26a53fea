mkdir -p /srv/datasets /srv/results
chown 1000:1000 /srv/results
