{{- /* Refuses the values of the release before, which lack those that are new since then: `helm upgrade --reuse-values` merges no new
defaults. A test compares the list with that release's values.yaml. */ -}}
{{- define "weir.checkNewValues" -}}
{{- range $key := list "prometheusRule.runbookBaseUrl" "report.deployment" -}}
{{- $section := $.Values.AsMap -}}
{{- range $name := splitList "." $key -}}
{{- if not (hasKey $section $name) -}}
{{- fail (printf "%s is missing, which this version of the chart added; --reuse-values keeps an older version's values: use --reset-then-reuse-values (Helm 3.14), or -f with your values" $key) -}}
{{- end -}}
{{- $section = get $section $name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Refuses `config.admin: null`, and `port: null`, which remove values that the chart reads itself, and a host that no probe reaches. */ -}}
{{- define "weir.checkAdmin" -}}
{{- if not (kindIs "map" .Values.config.admin) -}}
{{- fail "config.admin is empty: write {} for its defaults, or remove the key" -}}
{{- else if not (hasKey .Values.config.admin "port") -}}
{{- fail "config.admin.port is empty: write a port, such as 9644, or remove the key" -}}
{{- end -}}
{{- $host := .Values.config.admin.host | default "" | toString | trim -}}
{{- if regexMatch "(?i)^(|127\\..*|::ffff:127\\..*|[0:]*:0*1|localhost\\.?)$" $host -}}
{{- $found := ternary (printf "is %s" $host) "is missing, and Weir's default is 127.0.0.1" (ne $host "") -}}
{{- fail (printf "config.admin.host %s: kubelet's probes reach only the pod's IP, so kubelet would kill healthy pods: write 0.0.0.0, as in the chart's values; networkPolicy.admin restricts access" $found) -}}
{{- end -}}
{{- end -}}

{{- /* Refuses names of listeners from which no Service or port can be named, listeners with the admin port, and keys of `services`
that no listener has. */ -}}
{{- define "weir.checkServices" -}}
{{- $admin := int .Values.config.admin.port -}}
{{- $names := list -}}
{{- $taken := dict -}}
{{- range $index, $listener := (include "weir.listeners" . | fromYaml).listeners -}}
{{- $names = append $names $listener.name -}}
{{- $short := include "weir.listenerName" $listener.name -}}
{{- if not $short -}}
{{- fail (printf "config.listeners[%d].name is %s, and the name of a Service needs a letter or a digit: rename the listener" $index $listener.name) -}}
{{- else if hasKey $taken $short -}}
{{- fail (printf "config.listeners[%d].name is %s, and its Service would have the name of %s: rename one, so that their first 20 letters and digits differ" $index $listener.name (get $taken $short)) -}}
{{- end -}}
{{- $_ := set $taken $short $listener.name -}}
{{- $range := splitList "-" ($listener.broker_ports | default "1-0") -}}
{{- if eq $admin (int $listener.bootstrap_port) -}}
{{- fail (printf "config.admin.port is %d, and config.listeners[%d].bootstrap_port is too: give each a port of its own" $admin $index) -}}
{{- else if and (le (first $range | trim | atoi) $admin) (le $admin (last $range | trim | atoi)) -}}
{{- fail (printf "config.admin.port is %d, one of config.listeners[%d].broker_ports (%s): give each a port of its own" $admin $index $listener.broker_ports) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.services -}}
{{- if not (has $name $names) -}}
{{- fail (printf "services.%s: no listener is named %s; config.listeners has %s: rename the key to one of these, or remove it" $name $name (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Refuses volume agents whose usage no gateway reads. */ -}}
{{- define "weir.checkVolumeAgent" -}}
{{- $volumes := (.Values.config.quotas | default dict).volumes -}}
{{- $source := dig "source" "log_dirs" ($volumes | default dict) -}}
{{- if and (.Values.volumeAgent | default dict).enabled (or (not (kindIs "map" $volumes)) (ne $source "topic")) -}}
{{- $found := ternary (printf "config.quotas.volumes.source is %s" $source) "config.quotas.volumes is missing" (kindIs "map" $volumes) -}}
{{- fail (printf "volumeAgent.enabled is true, but %s, so no gateway reads the agents' usage: set config.quotas.volumes.source to topic, or volumeAgent.enabled to false" $found) -}}
{{- end -}}
{{- end -}}

{{- /* Refuses paths of `config` at which a gateway cannot write. Of nested mounts, the innermost decides. */ -}}
{{- define "weir.checkPaths" -}}
{{- $mounts := dict "/" (not (.Values.securityContext | default dict).readOnlyRootFilesystem) "/etc/weir/config" false "/var/lib/weir" true "/tmp" true -}}
{{- if .Values.ledgerVolume.enabled -}}{{- $_ := set $mounts "/var/lib/weir-ledger" true -}}{{- end -}}
{{- range $name, $_ := .Values.secrets -}}{{- $_ := set $mounts (printf "/etc/weir/secrets/%s" $name) false -}}{{- end -}}
{{- range .Values.extraVolumeMounts -}}{{- $_ := set $mounts (clean .mountPath) (not .readOnly) -}}{{- end -}}
{{- $writable := list -}}
{{- range $mount, $yes := $mounts -}}{{- if $yes -}}{{- $writable = append $writable $mount -}}{{- end -}}{{- end -}}
{{- $remedy := printf "give a path below %s, or mount a volume there with extraVolumes and extraVolumeMounts" (join " or " $writable) -}}
{{- /* Relative paths start at the config file's folder, the ledger's at the image's working directory. */ -}}
{{- $state := .Values.config.state | default dict -}}
{{- $checks := list (list "config.state.path" ($state.path | default "weir.state.json") "/etc/weir/config") -}}
{{- with $state.usage_path -}}{{- $checks = append $checks (list "config.state.usage_path" . "/etc/weir/config") -}}{{- end -}}
{{- with dig "path" "" (.Values.config.ledger | default dict) -}}{{- $checks = append $checks (list "config.ledger.path" . "/var/lib/weir") -}}{{- end -}}
{{- range $check := $checks -}}
{{- $path := index $check 1 -}}
{{- $whole := clean (ternary $path (printf "%s/%s" (index $check 2) $path) (isAbs $path)) -}}
{{- $innermost := "/" -}}
{{- range $mount, $_ := $mounts -}}
{{- if and (hasPrefix (printf "%s/" $mount) (printf "%s/" $whole)) (gt (len $mount) (len $innermost)) -}}{{- $innermost = $mount -}}{{- end -}}
{{- end -}}
{{- if not (get $mounts $innermost) -}}
{{- if and (hasPrefix "/var/lib/weir-ledger/" (printf "%s/" $whole)) (not $.Values.ledgerVolume.enabled) -}}
{{- $remedy = printf "set ledgerVolume.enabled to true, or %s" $remedy -}}
{{- end -}}
{{- $found := (or (ne (index $check 0) "config.state.path") (not (empty $state.path))) | ternary (printf "is %s" $path) "is missing" -}}
{{- $closed := eq $innermost "/" | ternary "the root file system" $innermost -}}
{{- fail (printf "%s %s, but the gateways cannot write to %s, because %s is read-only: %s" (index $check 0) $found $whole $closed $remedy) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Refuses paths of `config` below the folder of a Secret that is not mounted. */ -}}
{{- define "weir.checkSecrets" -}}
{{- $mounts := list -}}
{{- range $name, $_ := .Values.secrets -}}{{- $mounts = append $mounts (printf "/etc/weir/secrets/%s" $name) -}}{{- end -}}
{{- range .Values.extraVolumeMounts -}}{{- $mounts = append $mounts (clean .mountPath) -}}{{- end -}}
{{- range $quoted := regexFindAll "\"/etc/weir/secrets/[^\"]+\"" (toJson .Values.config) -1 -}}
{{- $path := clean (trimAll "\"" $quoted) -}}
{{- $mounted := false -}}
{{- range $mount := $mounts -}}
{{- if hasPrefix (printf "%s/" $mount) (printf "%s/" $path) -}}{{- $mounted = true -}}{{- end -}}
{{- end -}}
{{- if and (not $mounted) (hasPrefix "/etc/weir/secrets/" $path) -}}
{{- $name := index (splitList "/" $path) 4 -}}
{{- fail (printf "config has the path %s, but nothing is mounted there: add secrets.%s, or mount a volume there with extraVolumes and extraVolumeMounts" $path $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
