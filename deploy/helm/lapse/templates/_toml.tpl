{{- /* lapse.toml: [lapse] from the values, and the text of the rest. */ -}}
{{- define "lapse.toml" -}}
{{- if regexMatch "(?m)^[ \\t]*\\[[ \\t]*lapse[ \\t]*\\]" .Values.config }}
{{- fail "config has a table [lapse]: write its keys below the value lapse instead" }}
{{- end }}
{{- range list "data_dir" "metrics_host" "metrics_port" "bootstrap_servers" }}
{{- if hasKey $.Values.lapse . }}{{ fail (printf "lapse.%s: the chart sets it; take it out (kafka.bootstrapServers names the brokers, worker.metricsPort the port)" .) }}{{ end }}
{{- end -}}
[lapse]
bootstrap_servers = {{ .Values.kafka.bootstrapServers | quote }}
data_dir = "/var/lib/lapse"
metrics_host = "0.0.0.0"
metrics_port = {{ .Values.worker.metricsPort | int }}
{{- range $key, $value := .Values.lapse }}
{{ $key }} = {{ if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}

{{ .Values.config }}
{{- end }}
